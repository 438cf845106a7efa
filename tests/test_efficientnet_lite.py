"""The benchmark's EfficientNet-Lite0: its size, its padding, and curvature through it."""

import pytest
import torch
import torch.nn.functional as F
from benchmarks.efficientnet_lite import EfficientNetLite0, SameConv, pretrained
from safetensors.torch import save_file

import hessian_surgery as hs


def test_it_has_the_published_number_of_weights():
    assert sum(parameter.numel() for parameter in EfficientNetLite0().parameters()) == 4_652_008


@pytest.mark.parametrize(("size", "stride", "side"), [(7, 2, 3), (8, 2, 3), (8, 2, 5), (9, 1, 5)])
def test_padding_is_tensorflows(size, stride, side):
    conv = SameConv(1, 1, side, stride, bias=False)
    images = torch.randn(1, 1, size, size)
    found = conv(images)
    assert found.shape[-1] == -(-size // stride)
    # What is missing goes half before and half after, and the odd one after.
    missing = max((found.shape[-1] - 1) * stride + side - size, 0)
    before = missing // 2
    padded = F.pad(images, [before, missing - before] * 2)
    assert torch.equal(found, F.conv2d(padded, conv.weight, stride=stride))


@pytest.mark.full
def test_curvature_through_depthwise_convolutions_is_symmetric(tmp_path):
    torch.manual_seed(0)
    save_file(EfficientNetLite0(9).state_dict(), tmp_path / "weights.safetensors")
    net = pretrained(tmp_path / "weights.safetensors", 3).double().eval()
    data = hs.as_labelled((torch.randn(4, 3, 32, 32, dtype=torch.float64), torch.arange(4) % 3))
    space = hs.parameter_space(net, "_blocks.[0-3].*")
    product = hs.Hessian(net, data, space)
    one, other = torch.randn(2, space.dimension, dtype=torch.float64)
    assert float(one @ (product @ other)) == pytest.approx(float(other @ (product @ one)), rel=1e-8)
