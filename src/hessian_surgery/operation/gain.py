"""What a step is predicted to gain, and whether that is more than noise."""

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.evidence.accuracies import Rates
from hessian_surgery.operation.goal import Goal
from hessian_surgery.operation.iteration_record import Gain
from hessian_surgery.seeding import numpy_generator
from hessian_surgery.types import Array

# How many resamples of the images a gain's standard error is computed from.
RESAMPLES = 200
# A step is worth taking if its predicted gain is more than this many standard errors. With one
# standard error, the best of 140 steps passed in half of the cases with nothing to gain.
ERRORS = 2.0
# Another iteration is worth it if the last one gained at least this many times `ERRORS` standard
# errors, because each iteration gains about a third as much as the one before.
REST = 3.0


def estimate_gain(before: Tensor, after: Tensor, labels: Tensor, goal: Goal, seed: int = 0) -> Gain:
    """How much new answers improve the goal's score over the old ones, with its standard error.

    Args:
        before: the class predicted for each image before the step (n,).
        after: the class predicted after the step (n,).
        labels: the true class (n,).
        goal: defines the score.
        seed: fixes the resamples.
    """
    classes = len(goal.limits)
    # 0: never right, 1: right after only, 2: right before only, 3: right both times.
    cells = 2 * (before == labels).long() + (after == labels).long()
    table = torch.bincount(4 * labels + cells, minlength=4 * classes).view(classes, 4).cpu().numpy()
    count = table.sum(axis=1)
    draw = numpy_generator(seed, "gain")
    # Half an image is added to each cell: if two images both change, that is no proof.
    shares = (table + 0.5) / (table + 0.5).sum(axis=1, keepdims=True)
    rows = [draw.multinomial(n, share, size=RESAMPLES) for n, share in zip(count, shares, strict=True)]

    def improvement(cells: Array) -> float:
        right = [(cells[:, k] + cells[:, 3]) / count for k in (2, 1)]
        old, new = (Rates(float(share @ count / count.sum()), share) for share in right)
        return goal.score(old) - goal.score(new)

    error = float(np.std([improvement(cells) for cells in np.stack(rows, axis=1)]))
    return Gain(improvement(table), error)


def is_worth_a_step(gain: Gain, goal: Goal) -> bool:
    """Whether a step is predicted to gain more than noise; with targets, any gain is enough."""
    return gain.predicted > (0 if goal.targets else ERRORS * gain.error)


def is_worth_another(gain: Gain, goal: Goal) -> bool:
    """Whether the next iteration is likely to gain more than noise; with targets, always true."""
    return bool(goal.targets) or gain.predicted >= ERRORS * REST * gain.error
