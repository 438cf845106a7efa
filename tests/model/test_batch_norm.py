"""Batch norm of maps with one position: as rows, with the same values and derivatives."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from hessian_surgery.model.batch_norm import quick_batch_norm
from hessian_surgery.model.classifier import Classifier

KINDS = {3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


class shapes_seen(TorchFunctionMode):
    """What `batch_norm` is called with inside this block."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.batch_norm:
            self.shapes.append(tuple(args[0].shape))
        return func(*args, **(kwargs or {}))


def layer(dimensions, affine=True, **more):
    net = KINDS[dimensions](4, affine=affine, **more).double()
    draw = torch.Generator().manual_seed(0)
    for tensor in net.state_dict().values():
        if tensor.ndim:
            tensor.copy_(torch.rand(4, dtype=torch.float64, generator=draw) + 0.5)
    return net.eval()


def maps(*shape):
    return torch.randn(3, 4, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dimensions", KINDS)
def test_maps_of_one_position_are_rows_with_the_same_values(dimensions, affine):
    net = layer(dimensions, affine)
    x = maps(*[1] * (dimensions - 2)).requires_grad_()
    tangent = maps(*[1] * (dimensions - 2)).flip(0)

    def found():
        with forward_ad.dual_level():
            slope = forward_ad.unpack_dual(net(forward_ad.make_dual(x, tangent))).tangent
        y = net(x)
        return y, slope, torch.autograd.grad(y.square().sum(), x)[0]

    plain = found()
    with shapes_seen() as seen, quick_batch_norm():
        quick = found()
    assert seen.shapes == [(3, 4)] * 2
    for one, other in zip(quick, plain, strict=True):
        assert one.shape == x.shape
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_evaluation_on_a_gpu_does_so(monkeypatch):
    net = layer(4)
    for device, shape in (("cuda", (3, 4)), ("cpu", (3, 4, 1, 1))):
        monkeypatch.setattr(Classifier, "device", torch.device(device))
        with shapes_seen() as seen, Classifier(net).evaluating():
            net(maps(1, 1))
        assert seen.shapes == [shape]


def test_other_maps_and_other_functions_are_left_alone():
    with shapes_seen() as seen, quick_batch_norm():
        layer(4)(maps(1, 2))
        layer(3)(maps())
        assert torch.equal(F.relu(maps(1, 1)), maps(1, 1).clamp(min=0))
    assert seen.shapes == [(3, 4, 1, 2), (3, 4)]


def test_a_layer_without_running_statistics_takes_those_of_the_batch():
    net = layer(4, track_running_stats=False)
    plain = net(maps(1, 1))
    with quick_batch_norm():
        torch.testing.assert_close(net(maps(1, 1)), plain, rtol=1e-12, atol=1e-12)
