"""What a step is predicted to gain, and whether that is more than noise."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hessian_surgery.evidence.resampled_pairs import count_pairs
from hessian_surgery.operation.goal import Goal
from hessian_surgery.operation.iteration_record import Gain
from hessian_surgery.seeding import numpy_generator
from hessian_surgery.types import Array

# How many resamples of the images a gain's standard error is computed from.
RESAMPLES = 200
# A step is worth taking if its predicted gain is more than this many standard errors. Noise and
# luck have been taken off it: little more is needed (benchmarks/promises.py, null).
ERRORS = 0.5
# Another iteration is worth it if the last one gained at least this many standard errors: the first
# takes nearly all that there is.
REST = 6.0


def estimate_gain(
    before: Tensor, after: Tensor, labels: Tensor, goal: Goal, seed: int = 0, overstated: float = 0.0
) -> Gain:
    """How much new answers improve the goal's score over the old ones, with its standard error.

    Args:
        before: the class predicted for each image before the step (n,).
        after: the class predicted after the step (n,).
        labels: the true class (n,).
        goal: defines the score.
        seed: fixes the resamples.
        overstated: by how much the choice of these answers is known to flatter them.
    """
    classes = len(goal.limits)
    # 0: never right, 1: right after only, 2: right before only, 3: right both times.
    table = count_pairs(before.cpu(), after.cpu(), labels.cpu(), classes)[:, ::-1]
    count = table.sum(axis=1)
    draw = numpy_generator(seed, "gain")
    # Half an image is added to each cell: if two images both change, that is no proof.
    shares = (table + 0.5) / (table + 0.5).sum(axis=1, keepdims=True)
    rows = [draw.multinomial(n, share, size=RESAMPLES) for n, share in zip(count, shares, strict=True)]

    def improvement(cells: NDArray[np.int64]) -> Array:
        old, new = ((cells[..., k] + cells[..., 3]) / count for k in (2, 1))
        return goal.scores(old) - goal.scores(new)

    error = float(np.std(improvement(np.stack(rows, axis=1))))
    return Gain(float(improvement(table)) - overstated, error)


def is_worth_a_step(gain: Gain) -> bool:
    """Whether a step is predicted to gain more than noise."""
    return gain.predicted > ERRORS * gain.error


def is_worth_another(gain: Gain) -> bool:
    """Whether the next iteration is likely to gain more than noise."""
    return gain.predicted >= REST * gain.error
