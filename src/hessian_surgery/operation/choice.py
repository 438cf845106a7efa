"""The choice of a step, tried on resamples of the images to learn how much it flatters itself.

The best of many steps looks better than it is: the constraint on accuracy is met by luck, and so is
the low σ. How much is luck is measured. The images are resampled, the choice is made again on each
resample, and the step chosen there is looked up on the images themselves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hessian_surgery.evidence.resampled_pairs import count_by_class, resample_images
from hessian_surgery.operation.crossfit import PredictedStep
from hessian_surgery.operation.expected_gain import ExpectedGains, expected_gains
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
        gains: what the model's own probabilities expect of every step; None if they are not known.
        without_targets: those to choose from if there were no targets; None if there are none.
    """

    rungs: tuple[tuple[PredictedStep, ...], ...]
    count: NDArray[np.int64]
    drawn: Floats
    gains: ExpectedGains | None = None
    without_targets: "Candidates | None" = None

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

    @cached_property
    def shares(self) -> Array:
        """The share of each class (C,) in all images."""
        return np.asarray(self.count / self.count.sum())

    def choose(self, goal: Goal) -> Chosen:
        """The best step within the goal's limits; a larger family must be better beyond noise.

        The goal must have the aim that the steps were fitted to; its limits may differ. With
        targets, the step that would be taken without them is taken if it is predicted to do better.
        """
        return self.chooser(goal)(goal.floor)

    def chooser(self, goal: Goal) -> Callable[[float], Chosen]:
        """The choice as a function of the least accuracy; the goal's own floor plays no part."""
        aimed = self.judged_by(goal).choose
        if self.without_targets is None:
            return aimed
        free = self.without_targets.chooser(replace(goal, targets={}))

        def choose(floor: float) -> Chosen:
            chosen, without = aimed(floor), free(floor)
            return without if goal.score(without.step.rates) < goal.score(chosen.step.rates) else chosen

        return choose

    def judged_by(self, goal: Goal) -> "Choice":
        """All that the choice needs to know, whatever the floor on accuracy is."""
        room = goal.limits - self.per_class[0]
        scores, gain, within = [], [], []
        summed, squared = np.zeros((2, *self.per_class.shape))
        sure = bool(np.any(goal.limit_surety))
        # One resample at a time: copies of all would take several times their memory.
        for drawn in self.drawn:
            change = drawn - drawn[0]
            scores.append(goal.scores(drawn))
            gain.append(change @ self.shares)
            within.append((change >= room - SLACK).all(axis=-1))
            if sure:
                summed += change
                squared += np.square(change, dtype=np.float64)
        spread = np.sqrt(np.maximum(0.0, squared / len(self.drawn) - (summed / len(self.drawn)) ** 2))
        return Choice(
            candidates=self,
            scores=goal.scores(self.per_class),
            drawn_scores=np.stack(scores),
            drawn_gain=np.stack(gain),
            drawn_within=np.stack(within),
            room=room,
            margin=goal.limit_surety * spread,
        )


@dataclass(frozen=True)
class Choice:
    """The candidates as one goal sees them, but for its floor on accuracy.

    Attributes:
        candidates: M steps.
        scores: of each step (M,).
        drawn_scores: in each resample (R, M).
        drawn_gain: gain of accuracy over doing nothing, in each resample (R, M).
        drawn_within: whether the classes' limits hold there (R, M).
        room: how each class's accuracy (C,) may change, at least.
        margin: by how much more the limits must hold (M, C).
    """

    candidates: Candidates
    scores: Array
    drawn_scores: Array
    drawn_gain: Array
    drawn_within: NDArray[np.bool_]
    room: Array
    margin: Array

    def choose(self, floor: float) -> Chosen:
        """The best step with at least this accuracy; see `Candidates.choose`."""
        best = 0
        overstated = 0.0
        start = 1
        for rung in self.candidates.rungs[1:]:
            members = np.r_[0, start : start + len(rung)]
            start += len(rung)
            found, flattery = self._choose_among(members, floor)
            better = (self.scores[best] + overstated) - (self.scores[found] + flattery)
            if better > LADDER * float(np.std(self.drawn_scores[:, best] - self.drawn_scores[:, found])):
                best = found
                overstated = flattery
        return Chosen(self.candidates.steps[best], overstated)

    def _choose_among(self, members: NDArray[np.int64], floor: float) -> tuple[int, float]:
        """The best of some steps, and by how much its improvement is overstated."""
        known = self.candidates
        gain = known.per_class[members] - known.per_class[0]
        spare = floor - float(known.per_class[0] @ known.shares)
        scores = self.scores[members]
        drawn = self.drawn_scores[:, members]
        kept = (self.drawn_gain[:, members] >= spare - SLACK) & self.drawn_within[:, members]
        kept[:, 0] = True
        picked = np.where(kept, drawn, np.inf).argmin(axis=1)
        rows = np.arange(len(picked))
        lucky = known.drawn[rows, members[picked]] - known.drawn[:, 0] - gain[picked]
        total = max(0.0, float(np.mean(lucky @ known.shares)))
        margin = np.maximum(0.0, lucky.mean(axis=0)) + self.margin[members]
        shown = gain @ known.shares
        allowed = shown >= spare + total - SLACK
        if known.gains is not None:
            allowed &= known.gains.shrunk(shown, members) >= spare - SLACK
        allowed &= (gain - margin >= self.room - SLACK).all(axis=-1)
        allowed[0] = True
        accuracy = known.per_class[members] @ known.shares
        best = int(np.lexsort((-accuracy, np.where(allowed, scores, np.inf)))[0])
        flattery = max(0.0, float(np.mean((drawn[:, 0] - drawn[rows, picked]) - (scores[0] - scores[picked]))))
        return int(members[best]), flattery if best else 0.0


def make_candidates(
    rungs: Sequence[Sequence[PredictedStep]],
    labels: Tensor,
    classes: int,
    seed: int = 0,
    probabilities: Tensor | None = None,
) -> Candidates:
    """Candidates with their class accuracies on resamples of the images within each class.

    Args:
        rungs: as for `Candidates`.
        labels: the true class of each image (n,).
        classes: C.
        seed: fixes the resamples.
        probabilities: calibrated ones (n, C) of the present weights, if gains are to be expected.
    """
    truth = labels.cpu().numpy()
    right = np.stack([(step.answers.cpu().numpy() == truth) for rung in rungs for step in rung])
    # Single precision holds these counts exactly, and what is made of them is large.
    often = resample_images(truth, numpy_generator(seed, "choice"), RESAMPLES).astype(np.float32)
    count = np.bincount(truth, minlength=classes)
    drawn = count_by_class(right, truth, often, classes)
    np.divide(drawn, count, out=drawn, casting="unsafe")
    answers = [step.answers for rung in rungs for step in rung]
    gains = None if probabilities is None else expected_gains(answers, probabilities, labels)
    return Candidates(tuple(map(tuple, rungs)), count, drawn, gains)
