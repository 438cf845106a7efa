"""Cross-fitting: what a fitted step does to images that it was not fitted to."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.data.splits import stratified_folds
from hessian_surgery.evidence.accuracies import Rates, answer_rates, rates
from hessian_surgery.operation.coefficient_fit import PRICES, SHARES, fit_path
from hessian_surgery.operation.goal import Goal
from hessian_surgery.seeding import generator
from hessian_surgery.types import Array

# How many parts the images are divided into; each is predicted by a fit to the others.
FOLDS = 4

# Coefficients (K,), positions of images (n,) → their logits (n, C) after the step, measured.
AfterCoefficients = Callable[[Array, Tensor], Tensor]


@dataclass(frozen=True)
class Surrogate:
    """Logits of n images as a linear function of K coefficients.

    Attributes:
        logits: those of the present weights (n, C).
        changes: change of the logits per unit of each coefficient (K, n, C).
        labels: true class of each image (n,).
        classes: how many classes there are, C.
    """

    logits: Tensor
    changes: Tensor
    labels: Tensor
    classes: int

    def at(self, coefficients: Tensor) -> Tensor:
        """Logits (n, C) after a step with coefficients (K,)."""
        return self.logits + torch.einsum("k,knc->nc", coefficients, self.changes)

    def subset(self, positions: Tensor) -> "Surrogate":
        """The same for some of the images."""
        changes = self.changes[:, positions]
        return Surrogate(self.logits[positions], changes, self.labels[positions], self.classes)

    def first(self, count: int) -> "Surrogate":
        """The same for the first `count` directions only."""
        return replace(self, changes=self.changes[:count])

    def rates(self) -> Rates:
        """The accuracies, overall and by class, of the present weights."""
        return rates(self.logits, self.labels, self.classes)


@dataclass(frozen=True)
class PredictedStep:
    """A step, and how well it does on images that it was not fitted to.

    Attributes:
        coefficients: of all directions (K,): the mean of the folds' fits, times `share`.
        rates: accuracies of `answers`, overall and by class.
        answers: predicted class of each image (n,), by the fit that left out the image's fold.
        price: what a unit of accuracy was worth in the fit, in units of σ.
        share: how far the step goes along the fit: 1 is all the way.
        ray: number of the step's `Ray`, if so far only the linear model has predicted the step;
            None if a forward pass has measured the ray, or none is needed.
    """

    coefficients: Array
    rates: Rates
    answers: Tensor
    price: float = 0.0
    share: float = 0.0
    ray: int | None = None


@dataclass(frozen=True)
class Ray:
    """Fits at one price, each without one fold, and what they do to the images of that fold.

    It is a ray because its steps differ only in how far they go along the fits.

    Attributes:
        surrogate: the linear model of the images' logits.
        price: what a unit of accuracy is worth in the fits, in units of σ.
        fits: coefficients (folds, K); row i is the fit without fold i.
        folds: the fold of each image (n,).
        slope: first-order change of each image's logits (n, C) by the fit without its fold, taken
            all the way.
        bend: the measured change minus `slope` (n, C); None before a forward pass has measured it.
    """

    surrogate: Surrogate
    price: float
    fits: Array
    folds: Tensor
    slope: Tensor
    bend: Tensor | None = None

    def steps(self, ray: int | None = None) -> list[PredictedStep]:
        """A step for each share of the fits, predicted to second order if the ray is measured.

        Args:
            ray: the number that the steps keep as their `ray`.
        """
        found = []
        mean = self.fits.mean(axis=0)
        for share in SHARES:
            logits = self.surrogate.logits + share * self.slope
            if self.bend is not None:
                logits += share**2 * self.bend
            answers = logits.argmax(dim=1)
            seen = answer_rates(answers, self.surrogate.labels, self.surrogate.classes)
            found.append(PredictedStep(share * mean, seen, answers, self.price, share, ray))
        return found

    def measured(self, after: AfterCoefficients) -> "Ray":
        """The same ray, with every fit measured on the fold that it was not fitted to.

        All folds together take one forward pass over all images.
        """
        bend = torch.zeros_like(self.slope)
        for i, fit in enumerate(self.fits):
            mine = (self.folds == i).nonzero().squeeze(1)
            if len(mine) > 0:  # three images of each class leave the fourth fold empty
                bend[mine] = after(fit, mine).to(bend) - self.surrogate.logits[mine] - self.slope[mine]
        return replace(self, bend=bend)


def cross_fit(surrogate: Surrogate, goal: Goal, seed: int = 0) -> list[Ray]:
    """Fit at every price, leaving out each fold in turn: one ray for each price.

    Temperature, ridge and family of directions are not chosen by cross-fitting: the more candidates
    there are, the more the best one's prediction flatters it.
    """
    size = len(surrogate.changes)
    folds = make_folds(surrogate.labels, seed)
    others = [surrogate.subset((folds != i).nonzero().squeeze(1)) for i in range(FOLDS)]
    paths = np.array([fit_path(part.at, size, part.labels, part.classes, goal) for part in others])
    rays = []
    for number, price in enumerate(PRICES):
        slope = torch.zeros_like(surrogate.logits)
        for i, fits in enumerate(paths):
            coefficients = torch.tensor(fits[number], dtype=torch.float32, device=slope.device)
            slope[folds == i] = torch.einsum("k,knc->nc", coefficients, surrogate.changes[:, folds == i])
        rays.append(Ray(surrogate, price, paths[:, number], folds, slope))
    return rays


def make_folds(labels: Tensor, seed: int) -> Tensor:
    """The fold of each image (n,), stratified by class."""
    return stratified_folds(labels, FOLDS, generator(seed, "folds"))


class CandidateSteps:
    """The steps that an iteration chooses from.

    Some steps go along all directions, others along the biases alone. The biases are the first
    directions. Their effect is linear at any length, so the linear model predicts it exactly. With
    both kinds to choose from, the chosen step is predicted to do at least as well as biases alone.
    For steps along all directions, the linear model is usually too optimistic. If one of these is
    chosen, its ray is measured by a forward pass, and the choice is made again.

    Args:
        surrogate: the linear model of the calibration images' logits.
        goal: what the fits aim at.
        exact: how many directions, from the first, have an effect that is linear at any length.
        after: measures a step by a forward pass.
        seed: fixes the folds.
    """

    def __init__(self, surrogate: Surrogate, goal: Goal, exact: int, after: AfterCoefficients, seed: int = 0) -> None:
        size = len(surrogate.changes)
        self.nothing = PredictedStep(np.zeros(size), surrogate.rates(), surrogate.logits.argmax(dim=1))
        self._after = after
        self._rays = cross_fit(surrogate, goal, seed)
        self._linear = [ray.steps(i) for i, ray in enumerate(self._rays)]
        self._measured: dict[int, list[PredictedStep]] = {}
        self._exact = [self.nothing]
        if 0 < exact < size:
            alone = [step for ray in cross_fit(surrogate.first(exact), goal, seed) for step in ray.steps()]
            unused = (0, size - exact)
            self._exact += [replace(step, coefficients=np.pad(step.coefficients, unused)) for step in alone]

    def steps(self) -> list[PredictedStep]:
        """All steps, with the best predictions so far; the first does nothing."""
        return self._steps(set(self._measured))

    def choose(self, goal: Goal) -> PredictedStep:
        """The best step for a goal, measured by a forward pass if it needs one.

        The goal must have the aim that the steps were fitted to; its limits may differ. The choice
        does not depend on earlier choices.
        """
        seen: set[int] = set()
        while True:
            best = choose_step(self._steps(seen), goal)
            if best.ray is None:
                return best
            if best.ray not in self._measured:
                self._measured[best.ray] = self._rays[best.ray].measured(self._after).steps()
            seen.add(best.ray)

    def _steps(self, measured: set[int]) -> list[PredictedStep]:
        """All steps; those of the rays in `measured` use the forward pass."""
        rays = (self._measured[i] if i in measured else steps for i, steps in enumerate(self._linear))
        return self._exact + [step for steps in rays for step in steps]


def choose_step(steps: list[PredictedStep], goal: Goal) -> PredictedStep:
    """The step with the best score within the goal's limits.

    The first step, which does nothing, is chosen unless another is better.
    """
    allowed = [step for step in steps if goal.allows(step.rates)] or steps[:1]
    best = min(allowed, key=lambda step: (goal.score(step.rates), -step.rates.accuracy))
    return best if goal.score(best.rates) < goal.score(steps[0].rates) else steps[0]
