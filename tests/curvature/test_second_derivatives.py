import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

import hessian_surgery as hs
from hessian_surgery.curvature.second_derivatives import cheap_second_derivatives


def within(function):
    def call(*tensors):
        with cheap_second_derivatives():
            return function(*tensors)

    return call


def draw(*shape, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64).requires_grad_()


GEOMETRIES = [
    {},
    {"stride": 2, "padding": 1},
    {"stride": (2, 1), "padding": (0, 2), "dilation": (1, 2)},
    {"groups": 2, "padding": 1},
    {"padding": "same"},
]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_convolution_has_right_first_and_second_derivatives(geometry, bias):
    x, w = draw(2, 2, 4, 5), draw(2, 2 // geometry.get("groups", 1), 1, 3, seed=1)
    arguments = (x, w, draw(2, seed=2)) if bias else (x, w)
    convolve = within(lambda *t: F.conv2d(*t[:2], *(t[2:] or (None,)), **geometry))
    assert torch.equal(convolve(*arguments), F.conv2d(x, w, *(arguments[2:] or (None,)), **geometry))
    assert gradcheck(convolve, arguments)
    assert gradgradcheck(convolve, arguments)


@pytest.mark.parametrize("frozen", [(0,), (1,), (2,), (0, 1), (1, 2)])
def test_convolution_with_frozen_arguments(frozen):
    arguments = [draw(2, 3, 4, 4), draw(2, 3, 2, 2, seed=1), draw(2, seed=2)]
    for i in frozen:
        arguments[i].requires_grad_(False)
    convolve = within(lambda x, w, b: F.conv2d(x, w, b).sin())
    assert gradcheck(convolve, arguments)
    assert gradgradcheck(convolve, arguments)


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 2, 3)])
def test_batch_norm_in_evaluation_has_right_derivatives(shape):
    mean, variance = draw(3, seed=3).detach(), draw(3, seed=4).detach().exp()
    arguments = (draw(*shape), draw(3, seed=1), draw(3, seed=2))
    normalize = within(lambda x, w, b: F.batch_norm(x, mean, variance, w, b, eps=1e-3))
    assert torch.allclose(normalize(*arguments), F.batch_norm(arguments[0], mean, variance, *arguments[1:], eps=1e-3))
    assert gradcheck(normalize, arguments)
    assert gradgradcheck(normalize, arguments)


@pytest.mark.parametrize("training", [True, False])
def test_other_batch_norms_are_left_to_torch(training):
    x, mean, variance = draw(6, 3), torch.zeros(3).double(), torch.ones(3).double()
    expected = F.batch_norm(x, mean.clone(), variance.clone(), training=training)
    assert torch.equal(within(lambda x: F.batch_norm(x, mean, variance, training=training))(x), expected)


class Checkpointed(nn.Sequential):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


def test_models_that_do_more_than_plain_layers_still_have_products():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(18, 3)).double()
    batch = (torch.randn(5, 1, 4, 4, dtype=torch.float64), torch.arange(5) % 3)
    vector = torch.ones(hs.parameter_space(plain).dimension, dtype=torch.float64)
    expected = hs.Hessian(plain, batch) @ vector
    assert torch.allclose(hs.Hessian(Checkpointed(*plain), batch) @ vector, expected)
    mapped = hs.Classifier(plain, forward=lambda net, x: torch.func.vmap(lambda one: net(one[None])[0])(x))
    assert torch.allclose(hs.Hessian(mapped, batch) @ vector, expected)
    single = plain.float()
    cast = hs.Classifier(single, forward=lambda net, x: _autocast(net, x))
    product = hs.Hessian(cast, (batch[0].float(), batch[1])) @ vector.float()
    assert torch.linalg.norm(product.double() - expected) < 0.1 * torch.linalg.norm(expected)


def _autocast(net, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return net(x).float()


def test_a_convolution_of_one_image_without_a_batch():
    x, w = draw(3, 4, 4), draw(2, 3, 2, 2, seed=1)
    assert torch.equal(within(F.conv2d)(x, w), F.conv2d(x, w))


def test_a_hard_sigmoid_has_second_derivatives():
    """As in MobileNetV3; PyTorch's own has none."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Hardsigmoid(inplace=True), nn.Linear(5, 3)).double()
    inputs, labels = 3 * torch.randn(12, 4, dtype=torch.float64), torch.arange(12) % 3
    product = hs.Hessian(net, hs.as_labelled((inputs, labels)))
    space = hs.parameter_space(net)

    def loss(flat):
        w1, b1, w2, b2 = space.split(flat)
        hidden = ((inputs @ w1.T + b1 + 3) / 6).clamp(0, 1)
        return nn.functional.cross_entropy(hidden @ w2.T + b2, labels)

    dense = torch.func.hessian(loss)(space.flatten([p.detach() for p in net.parameters()]))
    vector = torch.randn(space.dimension, dtype=torch.float64)
    assert torch.allclose(product @ vector, dense @ vector)
