"""The choice of a step, tried on resamples of the images to learn how much it flatters itself.

The best of many steps looks better than it is: the constraint on accuracy is met by luck, and so is
the low σ. How much is luck is measured. The images are resampled, the choice is made again on each
resample, and the step chosen there is looked up on the images themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hessian_surgery.evidence.resampled_pairs import resample_images
from hessian_surgery.operation.crossfit import PredictedStep
from hessian_surgery.operation.goal import Goal
from hessian_surgery.seeding import numpy_generator
from hessian_surgery.types import Array

Floats: TypeAlias = NDArray[np.floating[Any]]

# Resamples of the images that a choice is tried on.
RESAMPLES = 100
# Rounding in comparisons of resampled shares, which have single precision.
SLACK = 1e-6
# A step of a larger family is chosen if its score is better by this many standard errors.
LADDER = 0.5


@dataclass(frozen=True)
class Chosen:
    """A chosen step, and how much its choice flatters it.

    Attributes:
        step: the step.
        overstated: by how much its predicted improvement of the score is too good, on average.
    """

    step: PredictedStep
    overstated: float = 0.0


@dataclass(frozen=True)
class Candidates:
    """The steps to choose from, on the images and on resamples of them.

    Attributes:
        rungs: the steps of each family, from the smallest family to the largest; the first rung
            holds only the step that does nothing.
        count: images of each class (C,).
        drawn: class accuracies of every step, rung by rung, on each resample (R, M, C).
    """

    rungs: tuple[tuple[PredictedStep, ...], ...]
    count: NDArray[np.int64]
    drawn: Floats

    @property
    def nothing(self) -> PredictedStep:
        """The step that does nothing."""
        return self.rungs[0][0]

    @cached_property
    def steps(self) -> tuple[PredictedStep, ...]:
        """All steps; the first does nothing."""
        return tuple(step for rung in self.rungs for step in rung)

    @cached_property
    def per_class(self) -> Array:
        """Class accuracies of every step (M, C)."""
        return np.stack([step.rates.per_class for step in self.steps])

    def accuracy(self, per_class: Floats) -> Array:
        """Accuracy over all images (…), from class accuracies (…, C)."""
        return np.asarray(per_class @ (self.count / self.count.sum()))

    def choose(self, goal: Goal) -> Chosen:
        """The best step within the goal's limits; a larger family must be better beyond noise.

        The goal must have the aim that the steps were fitted to; its limits may differ.
        """
        best = 0
        overstated = 0.0
        start = 1
        scores = goal.scores(self.per_class)
        drawn = goal.scores(self.drawn)
        for rung in self.rungs[1:]:
            members = np.r_[0, start : start + len(rung)]
            start += len(rung)
            found, flattery = self._choose_among(members, goal, scores, drawn)
            better = (scores[best] + overstated) - (scores[found] + flattery)
            if better > LADDER * float(np.std(drawn[:, best] - drawn[:, found])):
                best = found
                overstated = flattery
        return Chosen(self.steps[best], overstated)

    def _choose_among(self, members: NDArray[np.int64], goal: Goal, scores: Array, drawn: Array) -> tuple[int, float]:
        """The best of some steps, and by how much its improvement is overstated."""
        own = self.per_class[members]
        changes = self.drawn[:, members] - self.drawn[:, :1]
        room = goal.limits - own[0]
        spare = goal.floor - self.accuracy(own[0])
        kept = (self.accuracy(changes) >= spare - SLACK) & (changes >= room - SLACK).all(axis=-1)
        kept[:, 0] = True
        picked = np.where(kept, drawn[:, members], np.inf).argmin(axis=1)
        rows = np.arange(len(picked))
        lucky = changes[rows, picked] - (own[picked] - own[0])
        total = max(0.0, float(np.mean(self.accuracy(lucky))))
        margin = np.maximum(0.0, lucky.mean(axis=0)) + goal.limit_surety * changes.std(axis=0)
        allowed = self.accuracy(own - own[0]) >= spare + total - SLACK
        allowed &= (own - own[0] - margin >= room - SLACK).all(axis=-1)
        allowed[0] = True
        best = int(np.lexsort((-self.accuracy(own), np.where(allowed, scores[members], np.inf)))[0])
        there = drawn[:, [0]] - drawn[:, members]
        here = scores[0] - scores[members]
        flattery = max(0.0, float(np.mean(there[rows, picked] - here[picked])))
        return int(members[best]), flattery if best else 0.0


def make_candidates(
    rungs: Sequence[Sequence[PredictedStep]], labels: Tensor, classes: int, seed: int = 0
) -> Candidates:
    """Candidates with their class accuracies on resamples of the images within each class.

    Args:
        rungs: as for `Candidates`.
        labels: the true class of each image (n,).
        classes: C.
        seed: fixes the resamples.
    """
    truth = labels.cpu().numpy()
    right = np.stack([(step.answers.cpu().numpy() == truth) for rung in rungs for step in rung])
    often = resample_images(truth, numpy_generator(seed, "choice"), RESAMPLES)
    count = np.bincount(truth, minlength=classes)
    drawn = np.empty((RESAMPLES, len(right), classes), dtype=np.float32)
    for label in range(classes):
        own = truth == label
        drawn[:, :, label] = often[:, own].astype(np.float32) @ right[:, own].astype(np.float32).T / count[label]
    return Candidates(tuple(map(tuple, rungs)), count, drawn)
