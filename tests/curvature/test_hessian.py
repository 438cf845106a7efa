import gc
import weakref

import pytest
import torch
from torch import nn

import hessian_surgery as hs
from conftest import build, dense_hessian
from hessian_surgery.model.losses import cross_entropy, focal
from hessian_surgery.model.resnet import resnet18


@pytest.mark.parametrize("micro_batch", [None, 4, 100])
def test_products_match_the_dense_hessian(net, batch, micro_batch):
    operator = hs.Hessian(net, batch, micro_batch=micro_batch)
    expected = dense_hessian(net, *batch)
    found = operator @ torch.eye(len(expected), dtype=torch.float64)
    assert torch.linalg.norm(found - expected) <= 1e-8 * torch.linalg.norm(expected)


def test_a_subset_of_parameters_gives_the_sub_block(net, batch):
    space = hs.parameter_space(net, "*.weight")
    found = hs.Hessian(net, batch, space) @ torch.eye(space.dimension, dtype=torch.float64)
    expected = dense_hessian(net, *batch, names=list(space.names))
    assert torch.allclose(found, expected, rtol=1e-8, atol=1e-12)


def test_the_module_is_left_as_it_was(net, batch):
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    operator = hs.Hessian(net, batch)
    operator @ torch.ones(operator.shape[0], dtype=torch.float64)
    assert net.training
    assert all(p.grad is None for p in net.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_another_loss_is_differentiated(batch):
    net = build("conv")
    space = hs.parameter_space(net)
    vector = torch.randn(space.dimension, dtype=torch.float64)
    product = hs.Hessian(net, batch, loss=focal) @ vector
    gradient = torch.autograd.grad(focal(net(batch[0]), batch[1]), space.parameters, create_graph=True)
    along = sum((g * v).sum() for g, v in zip(gradient, space.split(vector), strict=True))
    expected = torch.cat([h.reshape(-1) for h in torch.autograd.grad(along, space.parameters)])
    assert torch.allclose(product, expected)


def test_weights_without_influence_have_no_curvature(batch):
    class Spare(nn.Module):
        def __init__(self):
            super().__init__()
            self.used = nn.Linear(12, 3).double()
            self.unused = nn.Linear(2, 2).double()

        def forward(self, x):
            return self.used(x)

    operator = hs.Hessian(Spare(), batch)
    product = operator @ torch.ones(operator.shape[0], dtype=torch.float64)
    assert product[:39].any()
    assert not product[39:].any()


def test_a_loss_that_is_linear_in_the_weights_has_no_curvature(batch):
    operator = hs.Hessian(nn.Linear(12, 3).double(), batch, loss=lambda logits, labels: logits.sum())
    assert not (operator @ torch.ones(39, dtype=torch.float64)).any()


def test_moving_the_weights_under_a_kept_graph_is_refused(batch):
    net = build("batchnorm")
    operator = hs.Hessian(net, batch)
    operator.space.perturb(torch.ones(operator.space.dimension, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        operator @ torch.ones(operator.shape[0], dtype=torch.float64)


def test_a_loss_that_is_not_finite_is_named(batch):
    with pytest.raises(hs.InputError, match="training_data: the loss on the batch is nan"):
        hs.Hessian(build("conv"), (batch[0] * float("nan"), batch[1]))


def test_a_real_architecture_matches_plain_double_backward():
    """Strides, 1×1 kernels, pooling, batch norm and shortcuts, of all layers and of the last."""
    torch.manual_seed(0)
    net = resnet18(5).double()
    net(torch.randn(8, 3, 32, 32, dtype=torch.float64))
    batch = (torch.randn(4, 3, 32, 32, dtype=torch.float64), torch.arange(4))
    for pattern in ("*", "layer4.*"):
        space = hs.parameter_space(net, pattern)
        vector = torch.randn(space.dimension, dtype=torch.float64)
        found = hs.Hessian(net, batch, space) @ vector
        net.eval()
        gradient = torch.autograd.grad(cross_entropy(net(batch[0]), batch[1]), space.parameters, create_graph=True)
        expected = space.flatten(torch.autograd.grad(gradient, space.parameters, space.split(vector)))
        assert torch.linalg.norm(found - expected) <= 1e-10 * torch.linalg.norm(expected)
        assert all(p.requires_grad for p in net.parameters())


@pytest.mark.parametrize("kind", [hs.Hessian, hs.GaussNewton])
def test_the_graph_is_freed_with_its_operator(batch, kind):
    """At once, not when the garbage collector runs: graphs are large."""
    gc.disable()
    try:
        operator = kind(build("conv"), batch)
        operator @ torch.ones(operator.shape[0], dtype=torch.float64)
        product = weakref.ref(operator._resident)
        del operator
        assert product() is None
    finally:
        gc.enable()
