"""A ResNet-20 for CIFAR-size images, the net that timings on two CPU cores are taken with.

hessian-surgery train --data parquet:cifar10 --model benchmarks.resnet20:network --epochs 40
"""

from torch import nn

from hessian_surgery.model.resnet import BasicBlock


def network(classes: int = 10) -> nn.Sequential:
    """Three stages of three blocks, 16 to 64 channels (He et al. 2016, section 4.2)."""
    widths = [16] * 3 + [32] * 3 + [64] * 3
    blocks = [
        BasicBlock(before, width, stride=1 if before == width else 2)
        for before, width in zip([16, *widths], widths, strict=False)
    ]
    stem = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))
