from dataclasses import replace

import numpy as np
import pytest

import hessian_surgery as hs
from conftest import operate
from hessian_surgery.evidence.class_noise import class_noise
from hessian_surgery.model.smallnet import SmallNet
from hessian_surgery.operation.acceptance_criteria import as_criteria, check_criteria
from hessian_surgery.operation.criteria_goal import aim_at_criteria, config_to_count
from hessian_surgery.operation.goal import Goal

NAMES = ("ant", "bee", "cat", "dog")
BASE = np.array([0.5, 0.7, 0.8, 0.9])
GOAL = Goal("sigma", 0.7, np.array([-np.inf, -np.inf, -np.inf, 0.85]), {0: 0.55}, surety=1.28)


def test_minima_that_are_met_and_drops_are_limits_the_others_are_targets():
    accept = {"minimum_accuracy": 0.75, "classes": {"dog": {"maximum_drop": 0.1}, "cat": {"maximum_drop": 0.02}}}
    found = aim_at_criteria(GOAL, as_criteria(accept, NAMES), BASE, NAMES)
    # The dog's own limit of 0.85 is stricter than both of its criteria.
    assert found.limits.tolist() == [-np.inf, -np.inf, 0.78, 0.85]
    assert found.targets == {0: 0.75, 1: 0.75}
    assert found.limit_surety.tolist() == [0, 0, 1.28, 1.28]
    assert (found.floor, found.aim) == (GOAL.floor, GOAL.aim)


def test_a_higher_target_stays():
    found = aim_at_criteria(GOAL, as_criteria({"minimum_accuracy": 0.51}, NAMES), BASE, NAMES)
    assert found.targets == {0: 0.55}


def test_a_class_that_falls_short_by_chance_is_kept_where_it_is():
    """With noise subtracted, all classes are alike and above the minimum."""
    base = np.array([0.69, 0.70, 0.71, 0.70])
    noise = class_noise(base, np.full(4, 50))
    found = aim_at_criteria(
        replace(GOAL, noise=noise, targets={}), as_criteria({"minimum_accuracy": 0.695}, NAMES), base, NAMES
    )
    assert found.targets == {}
    assert found.limits[:3] == pytest.approx([0.69, 0.695, 0.695])


def planned(accept, start, parts):
    """Held-out images after a plan without the criteria, and after one for them."""
    for asked in (None, accept):
        net = SmallNet(10)
        net.load_state_dict(start)
        yield operate(net, parts, hs.SurgeryConfig(), accept=asked).findings.heldout


@pytest.mark.full
def test_a_plan_within_drops_breaks_fewer(_trained, digits_parts):
    accept = {"maximum_drop": "2pp"}
    without, planned_for = (
        [one for one in check_criteria(as_criteria(accept, digits_parts.heldout.classes), found) if not one.met]
        for found in planned(accept, _trained, digits_parts)
    )
    assert len(planned_for) < len(without)


@pytest.mark.full
def test_a_plan_for_minima_lifts_classes_that_would_fall(_trained, digits_parts):
    """Two strong classes pay for a lower σ, unless a minimum is asked of them."""
    accept = {"classes": {name: {"minimum_accuracy": "95%"} for name in ("0", "1")}}
    without, planned_for = (found.metrics()[1].per_class[:2] for found in planned(accept, _trained, digits_parts))
    assert sum(planned_for) > sum(without)


def test_a_criterion_out_of_reach_is_reported_not_refused(trained, digits_parts):
    outcome = operate(trained, digits_parts, hs.SurgeryConfig(), accept={"minimum_accuracy": 1.0})
    assert outcome.acceptance["failed"]
    assert outcome.findings.criteria[0].asked == 1


def test_a_minimum_counts_as_an_aim_where_cost_is_estimated():
    config = hs.SurgeryConfig()
    assert config_to_count(config, None) is config
    assert config_to_count(config, as_criteria({"maximum_drop": 0.1}, NAMES)).targets == {}
    assert config_to_count(config, as_criteria({"minimum_accuracy": 0.6}, NAMES)).targets
    own = hs.SurgeryConfig(targets={"ant": 0.7})
    assert config_to_count(own, as_criteria({"minimum_accuracy": 0.6}, NAMES)) is own


@pytest.mark.full
def test_a_target_that_can_be_reached_alone_is_not_refused_because_of_criteria(trained, digits_parts):
    config = hs.SurgeryConfig(targets={"9": 0.4})
    outcome = operate(trained, digits_parts, config, accept={"classes": {"8": {"minimum_accuracy": 0.99}}})
    assert outcome.acceptance["failed"]
