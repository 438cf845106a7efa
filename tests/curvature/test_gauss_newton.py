import pytest
import torch
from torch import nn

import hessian_surgery as hs
from hessian_surgery.model.losses import class_balanced, cross_entropy, focal


def dense_gauss_newton(module, inputs, labels):
    """(1/n) Σ Jᵀ (∇²ℓ) J in full: J from autograd, ∇²ℓ = diag p − p pᵀ for cross-entropy."""
    module = module.eval()
    weights = {name: p.detach() for name, p in module.named_parameters()}
    jacobian = torch.func.jacrev(lambda w: torch.func.functional_call(module, w, (inputs,)))(weights)
    columns = torch.cat([j.flatten(2) for j in jacobian.values()], dim=2)
    p = module(inputs).softmax(dim=1).detach()
    bend = (torch.diag_embed(p) - p[:, :, None] * p[:, None, :]) / len(labels)
    return torch.einsum("nci,ncd,ndj->ij", columns, bend, columns)


@pytest.mark.parametrize("micro_batch", [None, 4])
def test_gauss_newton_is_the_dense_one(net, batch, micro_batch):
    operator = hs.GaussNewton(net, batch, micro_batch=micro_batch)
    expected = dense_gauss_newton(net, *batch)
    found = operator @ torch.eye(len(expected), dtype=torch.float64)
    assert torch.linalg.norm(found - expected) <= 1e-8 * torch.linalg.norm(expected)
    assert torch.linalg.eigvalsh(found)[0] > -1e-12


def test_gauss_newton_of_a_linear_model_is_its_hessian(batch):
    net = nn.Linear(12, 3).double()
    vector = torch.randn(39, dtype=torch.float64)
    for loss in (cross_entropy, focal, class_balanced(torch.tensor([5, 3, 2]))):
        newton, hessian = (kind(net, batch, loss=loss) @ vector for kind in (hs.GaussNewton, hs.Hessian))
        assert torch.allclose(newton, hessian)


def test_gauss_newton_of_a_loss_without_curvature_is_zero(batch):
    operator = hs.GaussNewton(nn.Linear(12, 3).double(), batch, loss=lambda logits, labels: logits.sum())
    assert not (operator @ torch.ones(39, dtype=torch.float64)).any()
