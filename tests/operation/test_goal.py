import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import hessian_surgery as hs
from hessian_surgery.data.class_names import class_number
from hessian_surgery.evidence.accuracies import Rates, rates, soft_rates
from hessian_surgery.operation.goal import NEAR_WORST, PENALTY, Goal, make_goal
from hessian_surgery.operation.protection import default_max_drop

NAMES = ("ant", "bee", "cat")
BASE = Rates(0.8, np.array([0.6, 0.8, 0.95]))
FREE = np.full(3, -np.inf)
NONE = np.zeros(3, dtype=bool)
ALL = ~NONE


def after(per_class, accuracy=0.8):
    return Rates(accuracy, np.array(per_class))


@pytest.mark.parametrize(
    ("found", "allowed"),
    [
        (BASE, True),
        (after([0.9, 0.1, 0.94]), True),  # only the last class is protected, and has lost what it may
        (after([0.9, 0.9, 0.939]), False),
        (after([0.6, 0.8, 0.95], accuracy=0.78), True),
        (after([0.6, 0.8, 0.95], accuracy=0.7799), False),
        (after([0.6, 0.8, 0.9399], accuracy=0.7), False),
    ],
)
def test_limits_by_hand(found, allowed):
    goal = make_goal(BASE, NAMES, budget=0.02, protected=np.array([False, False, True]), max_drop=0.01)
    assert (goal.floor, goal.limits.tolist()) == (pytest.approx(0.78), [-np.inf, -np.inf, pytest.approx(0.94)])
    assert goal.allows(found) == allowed


def test_a_limit_that_is_just_met_holds_whatever_the_rounding():
    """Shares of 37 images, of which a tenth may be lost."""
    for right in range(4, 38):
        base = Rates(right / 37, np.full(3, right / 37))
        goal = make_goal(base, NAMES, budget=3 / 37, protected=ALL, max_drop=3 / 37)
        assert goal.allows(Rates((right - 3) / 37, np.full(3, (right - 3) / 37)))
        assert not goal.allows(Rates((right - 4) / 37, np.full(3, (right - 3) / 37)))
        assert not goal.allows(Rates((right - 3) / 37, np.full(3, (right - 4) / 37)))


def test_scores_by_hand():
    found = after([0.5, 0.7, 0.9])
    assert Goal("sigma", 0, FREE).score(found) == pytest.approx(math.sqrt(0.08 / 3))
    assert Goal("worst", 0, FREE).score(found) == pytest.approx(0.5)
    reached = Goal("worst", 0, FREE, {0: 0.5, 2: 0.9})
    assert reached.shortfall(found) == 0
    assert reached.score(found) == pytest.approx(0.5)
    missed = Goal("sigma", 0, FREE, {0: 0.6, 1: 0.65, 2: 0.92})
    assert missed.shortfall(found) == pytest.approx((0.1 + 0 + 0.02) / 3)
    assert missed.score(found) == pytest.approx(100 * 0.04 + math.sqrt(0.08 / 3))


def test_there_is_no_shortfall_without_targets():
    assert Goal("sigma", 0, FREE).shortfall(BASE) == 0


def test_targets_count_before_the_spread():
    goal = make_goal(BASE, NAMES, protected=NONE, targets={"ant": 0.7})
    nearer_but_spread, even = after([0.65, 0.2, 1.0]), after([0.6, 0.6, 0.6])
    assert goal.score(nearer_but_spread) < goal.score(even)
    met, met_and_even = after([0.7, 0.2, 1.0]), after([0.75, 0.75, 0.75])
    assert goal.score(met_and_even) < goal.score(met) < goal.score(nearer_but_spread)


shares = arrays(np.float64, 4, elements=st.floats(0.05, 0.95))


@given(
    per_class=shares,
    present=shares,
    accuracy=st.floats(0.1, 0.9),
    price=st.floats(0, 8),
    aim=st.sampled_from(["sigma", "worst"]),
    protected=arrays(np.bool_, 4),
    wanted=st.one_of(st.just({}), st.dictionaries(st.integers(0, 3), st.floats(0.1, 1), min_size=1)),
)
@settings(max_examples=60, deadline=None)
def test_the_slope_of_the_soft_goal_is_that_of_differences(per_class, present, accuracy, price, aim, protected, wanted):
    """In float64, away from the kinks: where a limit or a target is just met, and where all classes
    are equal.
    """
    goal = Goal(aim, 0.0, np.where(protected, present - 0.1, -np.inf), wanted)
    exact = Rates(accuracy, present)
    soft = goal.soft(exact, torch.tensor(present, dtype=torch.float64))
    kinks = [per_class - (present - 0.1)] + [per_class[j] - target for j, target in wanted.items()]
    if min(np.abs(kink).min() for kink in kinks) < 1e-4 or per_class.std() < 1e-3:
        return
    point = torch.tensor([accuracy, *per_class], dtype=torch.float64, requires_grad=True)

    def value(at):
        return soft(at[0], at[1:], price)

    (slope,) = torch.autograd.grad(value(point), point)
    for i in range(5):
        move = 1e-6 * torch.eye(5, dtype=torch.float64)[i]
        expected = float(value(point.detach() + move) - value(point.detach() - move)) / 2e-6
        assert float(slope[i]) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("aim", "off"), [("sigma", 1e-9), ("worst", NEAR_WORST * math.log(3))])
def test_the_soft_goal_tends_to_the_exact_score(aim, off):
    """As the temperature goes to 0; the soft worst class is off by NEAR_WORST · log C at most."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 3
    logits = torch.randn(300, 3, generator=draw, dtype=torch.float64) + torch.eye(3)[labels]
    logits[labels == 0, 0] += 1.5
    exact, goal = rates(logits, labels, 3), Goal(aim, 0.0, FREE)

    def soft(accuracy, per_class):
        return float(goal.soft(exact, per_class)(accuracy, per_class, price=0.5))

    limit = soft(torch.tensor(exact.accuracy, dtype=torch.float64), torch.tensor(exact.per_class))
    score = goal.score(exact) - (1 if aim == "worst" else 0)  # minus the worst class, not its error
    assert abs(limit - (score - 0.5 * exact.accuracy)) <= off
    gaps = [abs(soft(*soft_rates(logits, labels, 3, temperature)) - limit) for temperature in (0.1, 0.003, 1e-6)]
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-6


def test_what_a_protected_class_loses_beyond_its_limit_costs_the_penalty():
    """The soft limit is as far below the soft present as the exact limit is below the exact
    present.
    """
    goal = make_goal(BASE, NAMES, protected=np.array([False, False, True]), max_drop=0.05)
    present = torch.tensor([0.5, 0.7, 0.8])
    soft, free = goal.soft(BASE, present), make_goal(BASE, NAMES, protected=NONE).soft(BASE, present)
    for last, beyond in ((0.9, 0.0), (0.751, 0.0), (0.7, 0.05), (0.6, 0.15)):
        per_class = torch.tensor([0.2, 0.9, last])
        cost = soft(torch.tensor(0.7), per_class, 1.0) - free(torch.tensor(0.7), per_class, 1.0)
        assert float(cost) == pytest.approx(PENALTY * beyond / 3, abs=1e-6)


def test_what_a_class_may_lose_unless_it_is_said():
    """σ; but a tenth at most; but no less than twice a usual class's standard error."""
    many, even = np.full(4, 10_000), np.array([0.78, 0.8, 0.8, 0.82])
    assert default_max_drop(even, many) == pytest.approx(np.std(even))
    assert default_max_drop(np.array([0.2, 0.9, 0.9, 0.9]), many) == 0.1
    assert default_max_drop(even, np.array([16, 16, 400, 16])) == pytest.approx(2 * np.sqrt(0.8 * 0.2 / 16))
    thousand = default_max_drop(np.full(1000, 0.8), np.full(1000, 16))
    assert thousand == pytest.approx(3.2905 * np.sqrt(0.8 * 0.2 / 16), rel=1e-4)


def test_a_soft_target_is_as_far_away_as_the_exact_one():
    goal = make_goal(BASE, NAMES, protected=NONE, targets={"ant": 0.7, "cat": 0.9})
    present = torch.tensor([0.5, 0.7, 0.8])
    soft = goal.soft(BASE, present)
    assert soft.wanted.tolist() == pytest.approx([0.6, 0.75])
    at = torch.tensor
    assert float(soft(at(0.7), at([0.6, 0.1, 0.75]), 0.0)) == pytest.approx(0, abs=2e-6)
    assert float(soft(at(0.7), at([0.5, 0.1, 0.75]), 0.0)) == pytest.approx(0.05 + math.sqrt(0.005), abs=1e-5)


def test_a_target_that_is_no_number_is_refused():
    with pytest.raises(hs.InputError, match=r"^targets: got bee=nan; it must be a finite number"):
        hs.SurgeryConfig(targets={"bee": float("nan")})


@pytest.mark.parametrize("value", [0.0, -0.1, 1.01, 80.0])
def test_a_target_that_is_no_accuracy_is_refused(value):
    with pytest.raises(hs.InputError, match=r"^targets: got bee=.*; give an accuracy as a fraction"):
        hs.SurgeryConfig(targets={"bee": value}).check_classes(NAMES)


@pytest.mark.parametrize("value", [0.001, 1.0])
def test_a_target_may_be_any_accuracy_above_0(value):
    config = hs.SurgeryConfig(targets={"bee": value})
    config.check_classes(NAMES)
    assert make_goal(BASE, NAMES, protected=NONE, targets=config.targets).targets == {1: value}


def test_a_class_that_is_not_there_is_named():
    with pytest.raises(hs.InputError, match=r"^targets: got 'dog', which is no class; there are ant, bee, cat$"):
        hs.SurgeryConfig(targets={"dog": 0.5}).check_classes(NAMES)
    with pytest.raises(hs.InputError, match=r"^protect: got 'Cat'.*there are 0, 1, .*, 11, …$"):
        class_number("Cat", tuple(map(str, range(20))), "protect")
    assert [class_number(name, NAMES, "protect") for name in NAMES] == [0, 1, 2]
