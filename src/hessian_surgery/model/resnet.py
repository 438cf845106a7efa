"""ResNet-18/34/50 (He et al. 2016), with torchvision's parameter names: its checkpoints load."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def _norm_conv(inputs: int, outputs: int, size: int, stride: int = 1) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    conv = nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)
    return conv, nn.BatchNorm2d(outputs)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions (ResNet-18 and 34)."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _norm_conv(inputs, width, 3, stride)
        self.conv2, self.bn2 = _norm_conv(width, width, 3)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) → (n, width, h/stride, w/stride)."""
        out = torch.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return torch.relu(out + self.downsample(x))


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions (ResNet-50), with the stride on the 3×3, as in torchvision."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _norm_conv(inputs, width, 1)
        self.conv2, self.bn2 = _norm_conv(width, width, 3, stride)
        self.conv3, self.bn3 = _norm_conv(width, 4 * width, 1)
        self.downsample = _shortcut(inputs, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) → (n, 4·width, h/stride, w/stride)."""
        out = torch.relu(self.bn1(self.conv1(x)))
        out = torch.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return torch.relu(out + self.downsample(x))


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(*_norm_conv(inputs, outputs, 1, stride))


def _stage(
    block: type[BasicBlock] | type[Bottleneck], inputs: int, width: int, depth: int, stride: int
) -> nn.Sequential:
    outputs = width * block.expansion
    return nn.Sequential(block(inputs, width, stride), *(block(outputs, width, 1) for _ in range(depth - 1)))


class ResNet(nn.Module):
    """A stem of stride 4, four stages, the mean over positions, and a linear head."""

    def __init__(self, block: type[BasicBlock] | type[Bottleneck], depths: Sequence[int], num_classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _norm_conv(3, 64, 7, 2)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        expansion = block.expansion
        self.layer1 = _stage(block, 64, 64, depths[0], stride=1)
        self.layer2 = _stage(block, 64 * expansion, 128, depths[1], stride=2)
        self.layer3 = _stage(block, 128 * expansion, 256, depths[2], stride=2)
        self.layer4 = _stage(block, 256 * expansion, 512, depths[3], stride=2)
        self.fc = nn.Linear(512 * expansion, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, 3, h, w) → logits (n, num_classes)."""
        out = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            out = stage(out)
        logits: Tensor = self.fc(out.mean(dim=(2, 3)))
        return logits


def resnet18(num_classes: int) -> ResNet:
    """ResNet-18."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes)


def resnet34(num_classes: int) -> ResNet:
    """ResNet-34."""
    return ResNet(BasicBlock, (3, 4, 6, 3), num_classes)


def resnet50(num_classes: int) -> ResNet:
    """ResNet-50."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes)
