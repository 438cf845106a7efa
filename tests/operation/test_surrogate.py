import numpy as np
import torch

from conftest import logits_at, make_surrogate
from hessian_surgery.evidence.accuracies import soft_rates
from hessian_surgery.operation.coefficient_fit import PRICES, RIDGE, _make_objective, fit_folds
from hessian_surgery.operation.goal import Goal
from hessian_surgery.operation.surrogate import Surrogate, logit_maps


def made_up(seed=0, width=5, leading=16, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(200) % width
    logits = torch.randn(200, width, generator=draw, dtype=dtype) + torch.eye(width, dtype=dtype)[labels]
    changes = torch.randn(2, 200, width, generator=draw, dtype=dtype)
    return make_surrogate(logits, labels, changes, shift=0.7, leading=leading), changes


def test_a_surrogate_by_hand():
    logits, changes = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[[1.0, 0], [0, 0]], [[0, 2.0], [0, -3]]])
    found = make_surrogate(logits, torch.tensor([0, 1]), changes)
    assert found.outputs.tolist() == [[0, 1], [1, 0]]
    assert logits_at(found, [0.5, 2.0]).tolist() == [[1.5, 4.0], [0.0, -4.0]]
    assert found.rates().accuracy == 1
    assert (found.size, found.exact, found.rest) == (2, 0, None)


def test_shifts_and_directions_are_the_dense_sum():
    found, changes = made_up()
    c = torch.randn(7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    dense = found.logits + 0.7 * c[:5] + torch.einsum("k,knc->nc", c[5:], changes)
    assert torch.allclose(logits_at(found, c), dense)
    few, _ = made_up(leading=3)
    assert few.outputs.shape == (200, 3)
    assert (few.outputs[:, 0] == few.labels).all()
    assert torch.allclose(few.at(c[None])[0], dense.gather(1, few.outputs))
    left = few.logits.scatter(1, few.outputs, -torch.inf).max(dim=1).values
    assert torch.equal(few.rest, left)
    assert (few.kept[:, 1:].min(dim=1).values >= left).all()


def test_scales_and_shifts_are_maps_of_logits():
    draw = torch.Generator().manual_seed(2)
    logits = torch.randn(50, 4, generator=draw)
    units = torch.tensor([1.0, 2.0, 0.5, 1.0])
    found = logit_maps(logits, torch.arange(50) % 4, 4, shifts=units, scales=0.1 * units)
    c = torch.randn(8, generator=draw)
    expected = logits * (1 + 0.1 * units * c[:4]) + units * c[4:]
    assert torch.allclose(logits_at(found, c), expected, atol=1e-6)
    some = torch.tensor([3, 40, 7])
    assert torch.allclose(found.mapped(c[None], some), expected[some], atol=1e-6)


def test_pulled_back_slopes_are_those_of_autograd():
    for leading in (16, 3):
        found, _ = made_up(leading=leading)
        maps = logit_maps(found.logits, found.labels, 5, shifts=found.shifts, scales=2 * found.shifts)
        draw = torch.Generator().manual_seed(4)
        for surrogate in (found, maps):
            slopes = torch.randn(3, *surrogate.outputs.shape, generator=draw, dtype=torch.float64)
            found_slopes = surrogate.pull_back(slopes)
            for k in range(surrogate.size):
                unit = torch.zeros(1, surrogate.size, dtype=torch.float64)
                unit[0, k] = 1
                expected = (slopes * surrogate.change(unit)).sum(dim=(1, 2))
                assert torch.allclose(found_slopes[:, k], expected)


def dense_objective(surrogate: Surrogate, changes, c, own, price, goal, noise):
    """The objective of one fit, from all logits, by the plain definition."""
    width = surrogate.logits.shape[1]
    logits = surrogate.logits + 0.7 * c[:width] + torch.einsum("k,knc->nc", c[width:], changes)
    top = surrogate.logits[own].topk(2, dim=1).values
    temperature = 0.3 * float((top[:, 0] - top[:, 1]).median())
    accuracy, per_class = soft_rates(logits[own], surrogate.labels[own], width, temperature)
    spread = (per_class - torch.tensor(noise)).std(correction=0)
    return spread - price * accuracy + RIDGE * c.square().sum()


def test_values_and_slopes_are_those_of_the_definition():
    """Every fold and price against autograd through all logits, in float64."""
    surrogate, changes = made_up()
    goal = Goal("sigma", 0.0, np.full(5, -np.inf))
    folds = torch.arange(200) // 5 % 4
    objective = _make_objective(surrogate, goal, folds)
    drawn = torch.randn(24, 7, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    both = objective.value_and_slope(0.3 * drawn)
    for row in range(24):
        own = folds != row // len(PRICES)
        c = (0.3 * drawn[row]).requires_grad_()
        noise = surrogate.noise(own.nonzero()[:, 0]).expected
        value = dense_objective(surrogate, changes, c, own, PRICES[row % len(PRICES)], goal, noise)
        (slope,) = torch.autograd.grad(value, c)
        # Noise and prices are held in float32.
        assert abs(float(both[row, 0] - value)) < 1e-6
        assert torch.allclose(both[row, 1:], slope, atol=1e-6)
    some = torch.tensor([3, 17])
    assert torch.allclose(objective.only(some).value_and_slope(0.3 * drawn[some]), both[some])


def test_a_fit_cannot_be_bettered_nearby():
    surrogate, _ = made_up(dtype=torch.float32)
    goal = Goal("sigma", 0.0, np.full(5, -np.inf))
    folds = torch.arange(200) // 5 % 4
    fits = torch.tensor(fit_folds(surrogate, goal, folds).reshape(24, -1), dtype=torch.float32)
    objective = _make_objective(surrogate, goal, folds)
    least = objective.value_and_slope(fits)[:, 0]
    draw = torch.Generator().manual_seed(6)
    for _ in range(20):
        near = fits + 0.02 * torch.randn(fits.shape, generator=draw)
        assert (objective.value_and_slope(near)[:, 0] > least - 1e-4).all()
