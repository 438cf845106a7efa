from dataclasses import replace

import numpy as np
import pytest
import torch

import hessian_surgery as hs
from conftest import operate
from hessian_surgery.cli.option_names import as_options
from hessian_surgery.evidence.accuracies import Rates
from hessian_surgery.evidence.class_noise import class_noise
from hessian_surgery.operation.crossfit import PredictedStep
from hessian_surgery.operation.feasibility import Infeasible, require_reachable
from hessian_surgery.operation.goal import Goal

NAMES = ("ant", "bee", "cat")
FREE = (-np.inf, -np.inf, -np.inf)


def step(accuracy, *per_class):
    return PredictedStep(np.zeros(1), Rates(accuracy, np.array(per_class)), torch.zeros(1))


NOTHING = step(0.80, 0.50, 0.90, 0.95)
FOUND = [
    NOTHING,
    step(0.80, 0.56, 0.90, 0.945),  # within all limits below
    step(0.78, 0.62, 0.85, 0.945),  # the floor is broken
    step(0.80, 0.66, 0.90, 0.80),  # cat's limit is
    step(0.70, 0.75, 0.70, 0.70),  # and all of them
]


def goal(wanted, floor=0.795, limits=(-np.inf, 0.80, 0.94)):
    return Goal("sigma", floor, np.array(limits), {0: wanted})


@pytest.mark.parametrize("wanted", [0.3, 0.5, 0.56])
def test_nothing_is_said_where_a_step_reaches_the_target(wanted):
    assert require_reachable(goal(wanted), FOUND, NAMES) is None


def test_nothing_is_said_without_targets():
    assert require_reachable(Goal("sigma", 0.99, np.array(FREE)), FOUND, NAMES) is None


def test_what_blocks_is_named_with_what_it_costs():
    with pytest.raises(Infeasible) as raised:
        require_reachable(goal(0.75), FOUND, NAMES)
    text = str(raised.value)
    assert text.startswith("targets: cannot be reached within the limits by a first step. ")
    assert "At best, on data not fitted to: ant 56.0 % (wanted 75.0 %)." in text
    assert "without cat's limit 10.0 pp nearer, where cat loses 15.0 pp" in text
    assert "without the budget 6.0 pp nearer, where bee loses 5.0 pp" in text
    assert "bee's limit" not in text
    assert text.index("cat's limit") < text.index("the budget")
    assert "give a larger --max-drop N or --budget N" in as_options(text)
    assert text.endswith("or protect fewer classes. Within these limits ask for at most ant=56%.")
    assert "\n" not in text


def test_a_limit_that_comes_from_a_criterion_is_called_so():
    with pytest.raises(Infeasible) as raised:
        require_reachable(goal(0.75), FOUND, NAMES, own=np.array(FREE))
    text = str(raised.value)
    assert "without cat's criterion 10.0 pp nearer" in text
    assert "or protect fewer classes, or ease that criterion. Within" in text
    with pytest.raises(Infeasible, match="without cat's limit 10"):
        require_reachable(goal(0.75), FOUND, NAMES, own=goal(0.75).limits)


def test_the_floor_alone_is_named_where_no_class_is_protected():
    with pytest.raises(Infeasible, match=r"What blocks: without the budget 9\.0 pp nearer, where cat loses 25"):
        require_reachable(goal(0.75, limits=FREE), FOUND, NAMES)


def test_limits_that_only_block_together_are_named_together():
    both = [NOTHING, step(0.80, 0.7, 0.7, 0.7)]
    with pytest.raises(Infeasible, match=r"What blocks: without all limits of classes 20\.0 pp nearer"):
        require_reachable(goal(0.75), both, NAMES)


def test_where_no_limit_blocks_the_directions_are_at_their_end():
    with pytest.raises(
        Infeasible, match=r"No single limit blocks it: no predicted step goes far enough .*Lower the target\. Within"
    ):
        require_reachable(goal(0.9, floor=0.0, limits=FREE), FOUND, NAMES)


def test_every_missed_target_is_named():
    two = Goal("sigma", 0.795, np.array([-np.inf, -np.inf, 0.94]), {0: 0.7, 1: 0.95})
    with pytest.raises(Infeasible, match=r"ant 56\.0 % \(wanted 70\.0 %\), bee 90\.0 % \(wanted 95\.0 %\)"):
        require_reachable(two, FOUND, NAMES)


def test_it_is_an_error_of_the_input():
    assert issubclass(Infeasible, hs.InputError)


def test_a_target_beyond_reach_leaves_the_model_as_it_was(trained, digits_parts, tmp_path):
    before = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    with pytest.raises(Infeasible, match=r"2 \d+\.\d % \(wanted 99\.9 % and \d+\.\d pp to spare for chance\)"):
        operate(trained, digits_parts, hs.SurgeryConfig(targets={"2": 0.999}), folder=tmp_path / "run")
    assert all(torch.equal(before[name], tensor) for name, tensor in trained.state_dict().items())
    assert not (tmp_path / "run").exists()


def test_a_target_within_reach_is_reached_on_the_calibration_images(trained, digits_parts):
    config = hs.SurgeryConfig(targets={"2": 0.5}, budget=0.01, max_drop=0.25)
    before, after = operate(trained, digits_parts, config).findings.calibration.metrics()
    assert before.per_class[2] < 0.5 <= after.per_class[2]
    assert after.accuracy >= before.accuracy - 0.01


def test_where_chance_is_all_no_target_is_advised():
    """Half of ten images: with that to spare nothing is left."""
    few = replace(goal(0.75), noise=class_noise(np.full(3, 0.5), np.array([4, 400, 400])), surety=1.28)
    with pytest.raises(Infeasible, match=r"Within these limits no target of ant is sure\.$"):
        require_reachable(few, [step(0.80, 0.10, 0.95, 0.95)], NAMES)
