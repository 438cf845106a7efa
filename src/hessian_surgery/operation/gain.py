"""What a step is predicted to gain, and whether that is more than noise."""

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.evidence.accuracies import Rates
from hessian_surgery.operation.goal import Goal
from hessian_surgery.operation.iteration_record import Gain
from hessian_surgery.seeding import numpy_generator
from hessian_surgery.types import Array

# Resamples of the images that give a gain its standard error.
RESAMPLES = 200
# A step is worth taking if it gains more standard errors than this. With one, the best of 140 steps
# passed in half of the cases in which there was nothing to gain.
ERRORS = 2.0
# Another iteration is worth it if the last one gained this many times `ERRORS`: each gains about a
# third of the one before.
REST = 3.0


def estimate_gain(before: Tensor, after: Tensor, labels: Tensor, goal: Goal, seed: int = 0) -> Gain:
    """How much some answers (n,) improve the goal's score on others, and its standard error.

    Args:
        before: the answers to improve on (n,).
        after: the new answers (n,).
        labels: (n,).
        goal: gives the score.
        seed: fixes the resamples.
    """
    classes = len(goal.limits)
    cells = 2 * (before == labels).long() + (after == labels).long()  # right never, after, before, both times
    table = torch.bincount(4 * labels + cells, minlength=4 * classes).view(classes, 4).cpu().numpy()
    count = table.sum(axis=1)
    draw = numpy_generator(seed, "gain")
    # Half an image more in each cell: two images that both changed are no proof.
    shares = (table + 0.5) / (table + 0.5).sum(axis=1, keepdims=True)
    rows = [draw.multinomial(n, share, size=RESAMPLES) for n, share in zip(count, shares, strict=True)]

    def improvement(cells: Array) -> float:
        right = [(cells[:, k] + cells[:, 3]) / count for k in (2, 1)]
        old, new = (Rates(float(share @ count / count.sum()), share) for share in right)
        return goal.score(old) - goal.score(new)

    error = float(np.std([improvement(cells) for cells in np.stack(rows, axis=1)]))
    return Gain(improvement(table), error)


def is_worth_a_step(gain: Gain, goal: Goal) -> bool:
    """Whether a step gains more than noise. With a target, any gain is worth a try."""
    return gain.predicted > (0 if goal.targets else ERRORS * gain.error)


def is_worth_another(gain: Gain, goal: Goal) -> bool:
    """Whether the iteration after a step with this gain is likely to gain more than noise."""
    return bool(goal.targets) or gain.predicted >= ERRORS * REST * gain.error
