"""The front: what other objectives and budgets are predicted to do, with bands."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from hessian_surgery.evidence.metrics import sigma
from hessian_surgery.operation.choice import Candidates
from hessian_surgery.operation.gain import estimate_gain, is_worth_a_step
from hessian_surgery.operation.goal import Goal, Target
from hessian_surgery.operation.surrogate import Surrogate
from hessian_surgery.types import Array

# Accuracy that may be given up, as fractions, at the points of a front.
BUDGETS = (0.0, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02)
# Standard errors on either side of a prediction that make a band of 95 %.
WIDE = 1.96
# Decimals of the ends of a band.
DIGITS = 6


def predict_front(
    surrogate: Surrogate,
    goal: Goal,
    known: Mapping[Target, Candidates],
    make: Callable[[Goal], Candidates],
    seed: int,
) -> dict[str, Any]:
    """Each objective at each budget, as predicted for images that were not fitted to.

    A point that gains no more than noise leaves the model as it is.

    Args:
        surrogate: of the starting model.
        goal: the limits, without targets; its aim and floor play no part.
        known: candidates that exist already, by their aim.
        make: makes those of another aim.
        seed: fixes the resamples.
    """
    base = surrogate.rates()
    points = []
    for aim in get_args(Target):
        free = replace(goal, aim=aim)
        candidates = known.get(aim) or make(free)
        choice = candidates.judged_by(free)
        nothing = candidates.nothing
        for budget in BUDGETS:
            limited = replace(free, floor=base.accuracy - budget)
            chosen = choice.choose(limited.floor)
            answers = chosen.step.answers
            gain = estimate_gain(nothing.answers, answers, surrogate.labels, limited, seed, chosen.overstated)
            seen = chosen.step.rates if is_worth_a_step(gain) else nothing.rates
            point = {"objective": aim, "budget": budget, "accuracy": seen.accuracy, "sigma": seen.sigma}
            points.append(point | {"per_class": seen.per_class.tolist()})
    return {"points": points}


def banded(points: list[dict[str, Any]], fitted: Array, held: Array) -> list[dict[str, Any]]:
    """Points with a 95 % band for each class's accuracy on other images.

    A band counts the sampling of both sets of images. Two right and two wrong answers are added, so
    that no band has zero width.

    Args:
        points: as `predict_front` gives them.
        fitted: images of each class (C,) that the accuracies were predicted from.
        held: images of each class (C,) that they are predicted for.
    """
    rows = []
    for point in points:
        share = np.array(point["per_class"])
        drawn = (share * fitted + 2) / (fitted + 4)
        far = WIDE * np.sqrt(drawn * (1 - drawn) * (1 / fitted + 1 / held))
        low, high = np.clip([np.minimum(share, drawn) - far, np.maximum(share, drawn) + far], 0, 1)
        rows.append(point | {"low": low.round(DIGITS).tolist(), "high": high.round(DIGITS).tolist()})
    return rows


def describe_front(front: dict[str, Any], base: Array, fitted: Array, held: Array) -> dict[str, Any]:
    """The form that `result.json` holds.

    Args:
        front: as `predict_front` gives it.
        base: class accuracies (C,) of the starting model on the calibration images.
        fitted: calibration images of each class (C,).
        held: held-out images of each class (C,).
    """
    start = {"accuracy": float(base @ fitted / fitted.sum()), "sigma": sigma(base), "per_class": base.tolist()}
    return front | {"base": start, "points": banded(front["points"], fitted, held)}
