import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import soft_objective
from hessian_surgery.evidence.accuracies import logit_unit, rates, soft_rates, true_class_probability


def made_up(seed, images=60, classes=4, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(images) % classes
    labels = labels[torch.randperm(images, generator=draw)]
    logits = torch.randn(images, classes, generator=draw, dtype=dtype)
    return logits + torch.nn.functional.one_hot(labels, classes), labels


def test_rates_by_hand():
    logits = torch.tensor([[2.0, 1, 0], [0, 1, 2], [0, 3, 1], [0, 1, 0], [1, 0, 0], [0, 0, 1]])
    found = rates(logits, torch.tensor([0, 0, 1, 1, 2, 2]), 3)  # right, wrong, right, right, wrong, right
    assert found.accuracy == pytest.approx(4 / 6)
    assert found.per_class.tolist() == [0.5, 1.0, 0.5]
    assert found.sigma == pytest.approx(np.sqrt(2 / 36 + 4 / 36) / np.sqrt(3))


def test_an_answer_beyond_the_classes_is_wrong():
    found = rates(torch.tensor([[0.0, 0, 1], [0, 1, 0], [1, 0, 0]]), torch.tensor([0, 1, 0]), 2)
    assert found.per_class.tolist() == [0.5, 1.0]


@settings(deadline=None)
@given(seed=st.integers(0, 10_000))
def test_soft_rates_become_exact_as_the_temperature_goes_to_0(seed):
    logits, labels = made_up(seed)
    top = logits.topk(2, dim=1).values
    temperature = float((top[:, 0] - top[:, 1]).min()) / 30  # far below the closest call between two answers
    accuracy, per_class = soft_rates(logits, labels, 4, temperature)
    exact = rates(logits, labels, 4)
    assert float(accuracy) == pytest.approx(exact.accuracy, abs=1e-9)
    assert per_class.numpy() == pytest.approx(exact.per_class, abs=1e-9)


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), temperature=st.floats(0.2, 5), price=st.floats(0, 8))
def test_the_gradient_of_the_soft_objective_is_that_of_finite_differences(seed, temperature, price):
    logits, labels = made_up(seed, images=20)
    direction = torch.randn(logits.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    logits.requires_grad_(True)
    (slope,) = torch.autograd.grad(soft_objective(logits, labels, 4, temperature, price), logits)
    with torch.no_grad():
        sides = [float(soft_objective(logits + h * direction, labels, 4, temperature, price)) for h in (1e-5, -1e-5)]
    assert (sides[0] - sides[1]) / 2e-5 == pytest.approx(float((slope * direction).sum()), rel=1e-4, abs=1e-8)


def test_the_probability_of_the_true_class_is_a_sigmoid_of_the_soft_margin():
    logits, labels = made_up(0)
    others = logits.scatter(1, labels[:, None], -torch.inf)
    true = logits.gather(1, labels[:, None]).squeeze(1)
    expected = torch.sigmoid((true - 0.5 * (others / 0.5).logsumexp(dim=1)) / 0.5)
    assert torch.allclose(true_class_probability(logits, labels, 0.5), expected)


def test_the_soft_objective_prices_accuracy():
    logits, labels = made_up(0)
    accuracy, per_class = soft_rates(logits, labels, 4, 1.0)
    spread = per_class.numpy().std()
    assert float(soft_objective(logits, labels, 4, 1.0, 2.0)) == pytest.approx(spread - 2 * float(accuracy))


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), factor=st.floats(1e-3, 1e3))
def test_the_logit_unit_scales_with_logits_and_ignores_a_shift_of_all_of_an_image(seed, factor):
    logits, _ = made_up(seed)
    unit = logit_unit(logits)
    shifts = torch.randn(len(logits), 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert unit > 0
    assert logit_unit(factor * logits) == pytest.approx(factor * unit)
    assert logit_unit(logits + 100 * shifts) == pytest.approx(unit)
