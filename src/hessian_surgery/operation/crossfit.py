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

# Parts that the images are divided into; each is predicted by a fit to the others.
FOLDS = 4

# Coefficients (K,), positions (n,) → logits (n, C) of those images after the step, measured.
AfterCoefficients = Callable[[Array, Tensor], Tensor]


@dataclass(frozen=True)
class Surrogate:
    """Logits of n images as a linear function of K coefficients.

    Attributes:
        logits: as they are (n, C).
        changes: per unit of each coefficient (K, n, C).
        labels: (n,).
        classes: C.
    """

    logits: Tensor
    changes: Tensor
    labels: Tensor
    classes: int

    def at(self, coefficients: Tensor) -> Tensor:
        """Logits (n, C) after a step with coefficients (K,)."""
        return self.logits + torch.einsum("k,knc->nc", coefficients, self.changes)

    def subset(self, positions: Tensor) -> "Surrogate":
        """Some of the images."""
        changes = self.changes[:, positions]
        return Surrogate(self.logits[positions], changes, self.labels[positions], self.classes)

    def first(self, count: int) -> "Surrogate":
        """The first `count` directions only."""
        return replace(self, changes=self.changes[:count])

    def rates(self) -> Rates:
        """The exact rates of the logits as they are."""
        return rates(self.logits, self.labels, self.classes)


@dataclass(frozen=True)
class PredictedStep:
    """A step, and how it does on images that it was not fitted to.

    Attributes:
        coefficients: of all directions (K,), the mean of the folds' fits.
        rates: of the answers below.
        answers: to each image (n,), by the fit to the other folds.
        price: of accuracy, in the fit.
        share: how much of the fit the step takes.
        ray: the number of its ray, if only the linear model has predicted it; None if it needs no
            forward pass, or had one.
    """

    coefficients: Array
    rates: Rates
    answers: Tensor
    price: float = 0.0
    share: float = 0.0
    ray: int | None = None


@dataclass(frozen=True)
class Ray:
    """Fits at one price, each to all but one fold, and what they do to the images of that fold.

    Attributes:
        surrogate: the images.
        price: of accuracy, in the fits.
        fits: coefficients (folds, K).
        folds: the fold of each image (n,).
        slope: change of the logits (n, C) by the whole fit to the other folds, to first order.
        bend: what a forward pass adds to it (n, C); None before there was one.
    """

    surrogate: Surrogate
    price: float
    fits: Array
    folds: Tensor
    slope: Tensor
    bend: Tensor | None = None

    def steps(self, ray: int | None = None) -> list[PredictedStep]:
        """Each share of the way, predicted to second order if the whole way was measured.

        Args:
            ray: what the steps keep as the number of their ray.
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
        """The same with every fit measured on the fold that it was not fitted to.

        All folds together take one forward pass over all images.
        """
        bend = torch.zeros_like(self.slope)
        for i, fit in enumerate(self.fits):
            mine = (self.folds == i).nonzero().squeeze(1)
            if len(mine) > 0:  # three images of each class leave the fourth fold empty
                bend[mine] = after(fit, mine).to(bend) - self.surrogate.logits[mine] - self.slope[mine]
        return replace(self, bend=bend)


def cross_fit(surrogate: Surrogate, goal: Goal, seed: int = 0) -> list[Ray]:
    """Fits at every price, one for each fold that is left out.

    Temperature, ridge and family are not chosen this way: the best of more candidates is further
    from what it seems.
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

    There are steps along all directions, and along the first ones alone, whose effect is linear at
    any length: biases. So an operation is predicted to do at least as well as biases alone. The
    linear model predicts the others, and mostly flatters them, until one of them is chosen: then
    its ray is measured by a forward pass.

    Args:
        surrogate: the calibration images.
        goal: what the fits aim at.
        exact: how many directions, the first ones, are linear at any length.
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
        """All steps as they are predicted so far; the first does nothing."""
        return self._steps(set(self._measured))

    def choose(self, goal: Goal) -> PredictedStep:
        """The best step for a goal of the same aim, with its ray measured.

        The choice does not depend on earlier choices.
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
        """All steps, those of some rays as they were measured."""
        rays = (self._measured[i] if i in measured else steps for i, steps in enumerate(self._linear))
        return self._exact + [step for steps in rays for step in steps]


def choose_step(steps: list[PredictedStep], goal: Goal) -> PredictedStep:
    """The step with the best score within the goal's limits.

    The first step, which does nothing, is chosen unless another is better.
    """
    allowed = [step for step in steps if goal.allows(step.rates)] or steps[:1]
    best = min(allowed, key=lambda step: (goal.score(step.rates), -step.rates.accuracy))
    return best if goal.score(best.rates) < goal.score(steps[0].rates) else steps[0]
