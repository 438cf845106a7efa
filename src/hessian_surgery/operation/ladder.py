"""The ladder of families that a step is chosen from: prior shift, biases, all directions.

Few labels allow few coefficients. The smallest family has one: it moves every logit against the
class's share of the training images, as logit adjustment does. The next has one for each class; the
last has one for every direction. With a refitted head, the same families start there once more,
above one that has none: just the step to the start.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.operation.choice import Candidates, make_candidates
from hessian_surgery.operation.crossfit import AfterCoefficients, PredictedStep, Ray, cross_fit, predicted_step
from hessian_surgery.operation.goal import Goal
from hessian_surgery.operation.surrogate import Surrogate
from hessian_surgery.types import Array

# Families of steps, from the smallest to the largest.
Rungs: TypeAlias = list[list[PredictedStep]]
# Shares of log-priors that a prior shift subtracts from the logits.
TAUS = tuple(np.arange(1, 31) / 20)


@dataclass(frozen=True)
class Origin:
    """A step that other steps start from: part of the way to a refitted head.

    Attributes:
        coefficients: of all directions (K,).
        logits: all logits (n, C) there, on the device of the linear model.
    """

    coefficients: Array
    logits: Tensor


def climb(
    surrogate: Surrogate,
    goal: Goal,
    after: AfterCoefficients | None = None,
    *,
    training_counts: Tensor | None = None,
    origin: Origin | None = None,
    seed: int = 0,
) -> Candidates:
    """All steps of all families, each predicted on images that it was not fitted to.

    Scales and shifts of logits are linear at any length, so their effect is predicted exactly. For
    steps along directions the linear model is usually too optimistic: each of their rays is
    measured by a forward pass.

    Args:
        surrogate: the linear model of the calibration images' logits.
        goal: what the fits aim at.
        after: measures a step by a forward pass; None if there are no directions.
        training_counts: training images of each class (C,), if they are known.
        origin: where the same families start once more, above all others; None if nowhere.
        seed: fixes the folds and resamples.
    """
    starts = [_Start(surrogate, np.zeros(surrogate.size), after)]
    if origin is not None:
        moved = replace(surrogate, logits=origin.logits)
        starts.append(_Start(moved, origin.coefficients, after))
    known = [start.known(training_counts) for start in starts]
    fitted = [start.fitted(goal, seed) for start in starts]
    if not goal.targets:
        return _candidates(surrogate, known, fitted, seed)
    # Steps fitted to what comes after the targets too: a target must not cost what they give.
    free = [start.fitted(replace(goal, targets={}), seed) for start in starts]
    pairs = [zip(aimed, others, strict=True) for aimed, others in zip(fitted, free, strict=True)]
    joined = [[[*aimed, *others] for aimed, others in pair] for pair in pairs]
    every, without = (_candidates(surrogate, known, rungs, seed) for rungs in (joined, free))
    return replace(every, without_targets=without)


def _candidates(surrogate: Surrogate, known: list[Rungs], fitted: list[Rungs], seed: int) -> Candidates:
    """The rungs of all starts, one start above the other."""
    rungs = [rung for own, others in zip(known, fitted, strict=True) for rung in (*own, *others)]
    return make_candidates(rungs, surrogate.labels, surrogate.classes, seed, surrogate.probabilities)


@dataclass(frozen=True)
class _Start:
    """Where steps start.

    Attributes:
        surrogate: the linear model there.
        coefficients: how it is reached (K,).
        after: measures a step from the present weights; None if there are no directions.
    """

    surrogate: Surrogate
    coefficients: Array
    after: AfterCoefficients | None

    def known(self, training_counts: Tensor | None) -> Rungs:
        """The rungs that need no fit: just the start, and prior shifts from there."""
        surrogate = self.surrogate
        just = predicted_step(surrogate, np.zeros(surrogate.size), surrogate.logits.argmax(dim=1).cpu())
        rungs = [[just]]
        if surrogate.shifts is not None and surrogate.scales is None and training_counts is not None:
            rungs.append(_prior_shifts(surrogate, training_counts))
        return self._moved([rung for rung in rungs if rung])

    def fitted(self, goal: Goal, seed: int) -> Rungs:
        """The rungs that are fitted to a goal: biases, and all directions."""
        surrogate = self.surrogate
        rungs = []
        if surrogate.exact:
            rays = cross_fit(surrogate.without_directions(), goal, seed)
            rungs.append(_padded([ray.followed() for ray in rays], surrogate.size))
        if surrogate.exact < surrogate.size:
            rays = cross_fit(surrogate, goal, seed)
            rays = rays if self.after is None else [ray.measured(self._after) for ray in rays]
            rungs.append([step for ray in rays for step in ray.steps()])
        return self._moved(rungs)

    def _after(self, coefficients: Array, positions: Tensor) -> Tensor:
        assert self.after is not None  # its caller has seen to it
        return self.after(self.coefficients + coefficients, positions)

    def _moved(self, rungs: Rungs) -> Rungs:
        """The steps as seen from the present weights."""
        return [[replace(step, coefficients=self.coefficients + step.coefficients) for step in rung] for rung in rungs]


def prior_shift(training_counts: Tensor, outputs: int) -> Tensor:
    """Minus the logarithm of each class's share of the training images (outputs,).

    An output beyond the classes moves like the most frequent class: equal shares change nothing.

    Args:
        training_counts: training images of each class (C,), none of them 0.
        outputs: how many logits there are, C or more.
    """
    counts = training_counts.double().cpu()
    known = -(counts / counts.sum()).log()
    shift = torch.full((outputs,), float(known.min()), dtype=torch.float64)
    shift[: len(counts)] = known
    return shift


def _prior_shifts(surrogate: Surrogate, training_counts: Tensor) -> list[PredictedStep]:
    """Steps against the classes' shares of the training images; none if these are equal or 0."""
    if int(training_counts.min()) == 0 or int(training_counts.min()) == int(training_counts.max()):
        return []
    outputs = surrogate.logits.shape[1]
    shift = prior_shift(training_counts, outputs)
    shift -= shift.mean()
    assert surrogate.shifts is not None  # `climb` has seen to it
    per_tau = (shift / surrogate.shifts.double().cpu()).numpy()
    unused = np.zeros(surrogate.size - outputs)
    found = []
    for tau in TAUS:
        coefficients = np.concatenate([tau * per_tau, unused])
        logits = surrogate.logits + (tau * shift).to(surrogate.logits)
        found.append(predicted_step(surrogate, coefficients, logits.argmax(dim=1).cpu()))
    return found


def _padded(rays: list[Ray], size: int) -> list[PredictedStep]:
    """The steps of rays along the first directions, with coefficients of all directions (size,)."""
    steps = [step for ray in rays for step in ray.steps()]
    return [replace(step, coefficients=np.pad(step.coefficients, (0, size - len(step.coefficients)))) for step in steps]
