"""The front of an operation's first round: what other objectives and budgets are foreseen to do, with bands."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from hessian_surgery.evidence.metrics import sigma
from hessian_surgery.operation.crossfit import ERRORS, Look, Prospect, Surrogate, gain
from hessian_surgery.operation.goal import Goal
from hessian_surgery.paper.plan import Target
from hessian_surgery.types import Array

# Accuracy that may be given up, as fractions, at the points of a front.
BUDGETS = (0.0, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02)
# Standard errors on either side of a prediction that a band of 95 % has.
WIDE = 1.96


def trace(
    surrogate: Surrogate, goal: Goal, exact: int, look: Look, seed: int, known: Mapping[Target, Prospect]
) -> dict[str, Any]:
    """Each objective at each budget, as foreseen on images not fitted to; nothing changes where too little is gained.

    Args:
        surrogate: of the starting model.
        goal: the limits, without targets; its aim and floor play no part.
        exact: as for `Prospect`.
        look: as for `Prospect`.
        seed: of the folds.
        known: prospects that have been made, by their aim.
    """
    base, points = surrogate.rates(), []
    for aim in get_args(Target):
        free = replace(goal, aim=aim)
        prospect = known.get(aim) or Prospect(surrogate, free, exact, look, seed)
        nothing = prospect.steps[0]
        for budget in BUDGETS:
            limited = replace(free, floor=base.accuracy - budget)
            plan = prospect.choose(limited)
            expected, error = gain(nothing.predicted, plan.predicted, surrogate.labels, limited, seed)
            seen = plan.rates if expected > ERRORS * error else nothing.rates
            point = {"objective": aim, "budget": budget, "accuracy": seen.accuracy, "sigma": seen.sigma}
            points.append(point | {"per_class": seen.per_class.tolist()})
    return {"protected": np.flatnonzero(np.isfinite(goal.limits)).tolist(), "points": points}


def banded(points: list[dict[str, Any]], fitted: Array, held: Array) -> list[dict[str, Any]]:
    """Points with a 95 % band for each class's accuracy on other images.

    A band counts the sampling of the images (C,) that the accuracy was foreseen on, and of those that it is for. Two
    right and two wrong answers are added, so that none is of no width.
    """
    rows = []
    for point in points:
        share = np.array(point["per_class"])
        drawn = (share * fitted + 2) / (fitted + 4)
        far = WIDE * np.sqrt(drawn * (1 - drawn) * (1 / fitted + 1 / held))
        low, high = np.clip([np.minimum(share, drawn) - far, np.maximum(share, drawn) + far], 0, 1)
        rows.append(point | {"low": low.tolist(), "high": high.tolist()})
    return rows


def described(front: dict[str, Any], base: Array, fitted: Array, held: Array) -> dict[str, Any]:
    """The form that `result.json` holds; `base` are the class accuracies (C,) of the model as it is."""
    start = {"accuracy": float(base @ fitted / fitted.sum()), "sigma": sigma(base), "per_class": base.tolist()}
    return front | {"base": start, "points": banded(front["points"], fitted, held)}
