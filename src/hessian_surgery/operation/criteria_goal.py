"""A goal that also aims at acceptance criteria."""

from dataclasses import replace

import numpy as np

from hessian_surgery.operation.acceptance_criteria import Criteria
from hessian_surgery.operation.config import OperationConfig, SurgeryConfig
from hessian_surgery.operation.goal import Goal
from hessian_surgery.types import Array


def aim_at_criteria(goal: Goal, criteria: Criteria, base: Array, classes: tuple[str, ...]) -> Goal:
    """The goal with criteria as limits, and as targets where a minimum is not met yet.

    A class keeps the stricter of two limits, and the higher of two targets. What criteria ask for
    must be predicted to hold with `goal.surety` to spare.

    Args:
        goal: without the criteria.
        criteria: what is asked of each class.
        base: class accuracies (C,) of the starting model on the calibration images.
        classes: their names.
    """
    asked = [criteria.of(name) for name in classes]
    least = np.array([-np.inf if one.minimum_accuracy is None else one.minimum_accuracy for one in asked])
    most = np.array([np.inf if one.maximum_drop is None else one.maximum_drop for one in asked])
    short = base - goal.known_noise.expected < least
    limits = np.maximum(base - most, np.where(short, -np.inf, np.minimum(least, base)))
    targets = {int(j): max(float(least[j]), goal.targets.get(int(j), 0.0)) for j in np.flatnonzero(short)}
    return replace(
        goal,
        limits=np.maximum(limits, goal.limits),
        targets={**goal.targets, **targets},
        limit_surety=np.where(np.isfinite(limits), goal.surety, goal.limit_surety),
    )


def config_to_count(config: OperationConfig, criteria: Criteria | None) -> OperationConfig:
    """The config for estimates of cost: a minimum that is not met yet is an aim like a target."""
    if criteria is None or not isinstance(config, SurgeryConfig) or config.targets:
        return config
    limits = {"every": criteria.every, **criteria.classes}
    least = {name: one.minimum_accuracy for name, one in limits.items() if one.minimum_accuracy is not None}
    return replace(config, targets=least)
