import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from hessian_surgery.operation import minimize as module
from hessian_surgery.operation.minimize import minimize_all


def rows(function):
    """Evaluates all functions, and gives those that are wanted."""

    def evaluate(at, still):
        free = at.detach().requires_grad_()
        values = function(free)
        (slopes,) = torch.autograd.grad(values.sum(), free)
        return torch.cat([values.detach()[:, None], slopes], dim=1)[still]

    return evaluate


@given(seed=st.integers(0, 1000), size=st.integers(1, 12))
@example(seed=649, size=10)
@settings(max_examples=40, deadline=None)
def test_quadratics_end_where_a_solver_ends(seed, size):
    draw = torch.Generator().manual_seed(seed)
    root = torch.randn(5, size, size, generator=draw, dtype=torch.float64)
    matrix = root @ root.mT + torch.eye(size, dtype=torch.float64)
    target = torch.randn(5, size, generator=draw, dtype=torch.float64)

    def values(x):
        return 0.5 * torch.einsum("bi,bij,bj->b", x, matrix, x) - (target * x).sum(dim=1)

    found = minimize_all(rows(values), torch.zeros(5, size, dtype=torch.float64))
    exact = torch.linalg.solve(matrix, target)
    assert (values(found) - values(exact)).max() < 1e-4


def test_valleys_end_where_scipy_ends():
    """Rosenbrock's function from four starts."""

    def valley(x):
        return (1 - x[..., 0]) ** 2 + 100 * (x[..., 1] - x[..., 0] ** 2) ** 2

    starts = np.array([[-1.2, 1.0], [0.0, 0.0], [2.0, 2.0], [0.5, -1.0]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TOLERANCE", 1e-12)
        patch.setattr(module, "EVALUATIONS", 200)
        found = minimize_all(rows(valley), torch.tensor(starts)).numpy()
    for start, end in zip(starts, found, strict=True):
        assert end == pytest.approx(minimize(lambda x: valley(torch.tensor(x)).item(), start).x, abs=1e-3)


def test_each_function_has_its_own_end():
    """What one function does changes nothing for another; one that is done is not asked again."""
    asked = []
    scale = torch.tensor([1.0, 1e4, 1e-3])

    def values(x):
        return scale * (x - 3).square().sum(dim=1) + (x - 1).pow(4).sum(dim=1)

    def watched(at, still):
        asked.append(len(still))
        return rows(values)(at, still)

    start = torch.zeros(3, 4)
    together = minimize_all(watched, start)
    assert min(asked) < 3
    for i in range(3):
        alone = minimize_all(
            rows(lambda x, i=i: scale[i] * (x - 3).square().sum(dim=1) + (x - 1).pow(4).sum(dim=1)), start[:1]
        )
        assert torch.allclose(together[i], alone[0], atol=1e-5)


def test_what_has_no_slope_or_no_value_stays():
    start = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert torch.equal(minimize_all(rows(lambda x: 0 * x.sum(dim=1)), start), start)
    assert torch.equal(minimize_all(rows(lambda x: x.sum(dim=1) * torch.nan), start), start)
