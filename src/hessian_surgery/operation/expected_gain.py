"""What accuracy a step is expected to gain, by the model's own calibrated probabilities.

Few labels know a change of accuracy badly: with a thousand images its standard error is half a
percentage point. Probabilities that are calibrated to the same labels know it better, since each
changed answer has an expected gain between −1 and 1 instead of a drawn one. But they are a model,
and may be wrong. So the gain that the labels show is shrunk towards the gain that the probabilities
expect, the more so the better the two agree over all steps (James and Stein's estimate). A step
must keep the budget by this estimate, and by the labels alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import log_softmax, nll_loss, one_hot

from hessian_surgery.operation.minimize import minimize_all
from hessian_surgery.types import Array

# Penalty on the square of each class's correction: the classes may have few images each.
RIDGE = 1e-3
# The most logits that it is fitted to, as numbers: 2,000 images of 1,000 classes.
FITTED = 2_000_000


@dataclass(frozen=True)
class ExpectedGains:
    """What each of M steps is expected to gain over the first, as shares of all images.

    Attributes:
        expected: by the probabilities (M,).
        error: the standard error (M,) of what the labels show.
    """

    expected: Array
    error: Array

    def shrunk(self, shown: Array, members: NDArray[np.int64]) -> Array:
        """The gains (m,) of some steps, between what the labels show and what is expected.

        Args:
            shown: gains that the labels show (m,).
            members: which steps these are (m,).
        """
        expected, error = self.expected[members], self.error[members]
        moved = error > 0
        if not moved.any():
            return shown
        apart = float(np.mean(np.square((shown - expected)[moved] / error[moved])))
        share = max(0.0, 1 - 1 / apart) if apart > 0 else 0.0
        return share * shown + (1 - share) * expected


def expected_gains(answers: Sequence[Tensor], probabilities: Tensor, labels: Tensor) -> ExpectedGains:
    """The expected gains of steps over the first of them.

    Args:
        answers: of each step (n,); −1 is an answer that is surely wrong.
        probabilities: those of the present weights (n, C), calibrated.
        labels: the true classes (n,).
    """
    probabilities = probabilities.cpu()
    truth = labels.cpu()
    held = torch.stack([_held(probabilities, given.cpu()) for given in answers])
    right = torch.stack([(given.cpu() == truth).double() for given in answers])
    error = (right - right[0]).std(dim=1) / len(truth) ** 0.5
    return ExpectedGains((held - held[0]).mean(dim=1).numpy(), error.numpy())


def _held(probabilities: Tensor, answers: Tensor) -> Tensor:
    """The probability of each answer (n,), from those of all outputs (n, C)."""
    found = probabilities.gather(1, answers.clamp(min=0)[:, None]).squeeze(1)
    return torch.where(answers < 0, 0.0, found)


def calibrated(logits: Tensor, labels: Tensor) -> Tensor:
    """Probabilities (n, C) with one temperature and a shift for each class, fitted to labels.

    Both are fitted at once: the logarithm of the sharpness (1 / temperature) first, then C shifts.
    Many logits are not all fitted to: only those of evenly spread images, `FITTED` in all.
    """
    every = math.ceil(logits.numel() / FITTED)
    seen = logits[::every].double()
    truth = labels.to(logits.device)[::every]

    def evaluate(at: Tensor, _: Tensor) -> Tensor:
        sharpness, shift = at[0, 0].exp(), at[0, 1:]
        logs = log_softmax(seen * sharpness + shift, dim=1)
        value = nll_loss(logs, truth) + RIDGE * shift.square().sum()
        slope = (logs.exp() - one_hot(truth, seen.shape[1])) / len(seen)
        along = (slope * seen).sum() * sharpness
        return torch.cat([value[None], along[None], slope.sum(dim=0) + 2 * RIDGE * shift])[None]

    (found,) = minimize_all(evaluate, seen.new_zeros(1, 1 + seen.shape[1]))
    return torch.softmax(logits * found[0].exp().to(logits) + found[1:].to(logits), dim=1)
