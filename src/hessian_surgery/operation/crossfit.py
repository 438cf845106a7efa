"""Cross-fitting: what a fitted step does to images that it was not fitted to."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.data.splits import stratified_folds
from hessian_surgery.evidence.accuracies import Rates, answer_rates, rates
from hessian_surgery.evidence.class_noise import ClassNoise, class_noise
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
        started: the class that the starting model predicted for each image (n,); None if the
            present weights are its own.
    """

    logits: Tensor
    changes: Tensor
    labels: Tensor
    classes: int
    started: Tensor | None = None

    @property
    def size(self) -> int:
        """How many coefficients there are, K."""
        return len(self.changes)

    def change(self, coefficients: Tensor) -> Tensor:
        """Change of the logits (n, C) by a step with coefficients (K,)."""
        return torch.einsum("k,knc->nc", coefficients, self.changes)

    def at(self, coefficients: Tensor) -> Tensor:
        """Logits (n, C) after a step with coefficients (K,)."""
        return self.logits + self.change(coefficients)

    def subset(self, positions: Tensor) -> "Surrogate":
        """The same for some of the images."""
        started = None if self.started is None else self.started[positions]
        return replace(
            self,
            logits=self.logits[positions],
            changes=self.changes[:, positions],
            labels=self.labels[positions],
            started=started,
        )

    def first(self, count: int) -> "Surrogate":
        """The same for the first `count` directions only."""
        return replace(self, changes=self.changes[:count])

    def rates(self) -> Rates:
        """The accuracies, overall and by class, of the present weights."""
        return rates(self.logits, self.labels, self.classes)

    def predict(self, coefficients: Array, answers: Tensor) -> "PredictedStep":
        """A step with coefficients (K,) that is predicted to give answers (n,)."""
        return PredictedStep(coefficients, answer_rates(answers, self.labels, self.classes), answers)

    def noise(self) -> ClassNoise:
        """The sampling noise in the class accuracies of the starting model on these images."""
        started = self.logits.argmax(dim=1) if self.started is None else self.started
        seen = answer_rates(started, self.labels, self.classes)
        count = torch.bincount(self.labels, minlength=self.classes).cpu().numpy()
        return class_noise(seen.per_class, count)


@dataclass(frozen=True)
class LogitwiseSurrogate(Surrogate):
    """The same where a coefficient changes one logit only, as a class bias does.

    `changes` is (G, n, C): coefficient g · C + c changes logit c of image i by changes[g, i, c]. So
    it takes G · n · C numbers and not C times as many.
    """

    @property
    def size(self) -> int:
        """How many coefficients there are, G · C."""
        return len(self.changes) * self.logits.shape[1]

    def change(self, coefficients: Tensor) -> Tensor:
        """Change of the logits (n, C) by a step with coefficients (G · C,)."""
        return (coefficients.view(len(self.changes), 1, -1) * self.changes).sum(dim=0)


@dataclass(frozen=True)
class PredictedStep:
    """A step, and how well it does on images that it was not fitted to.

    Attributes:
        coefficients: of all directions (K,).
        rates: accuracies of `answers`, overall and by class.
        answers: predicted class of each image (n,), by the fit that left out the image's fold.
    """

    coefficients: Array
    rates: Rates
    answers: Tensor


@dataclass(frozen=True)
class Ray:
    """Fits at one price, each without one fold, and what they do to the images of that fold.

    It is a ray because its steps differ only in how far they go along the fits.

    Attributes:
        surrogate: the linear model of the images' logits.
        fits: coefficients (folds, K); row i is the fit without fold i.
        folds: the fold of each image (n,).
        slope: first-order change of each image's logits (n, C) by the fit without its fold, taken
            all the way.
        bend: the measured change minus `slope` (n, C); None before a forward pass has measured it.
    """

    surrogate: Surrogate
    fits: Array
    folds: Tensor
    slope: Tensor
    bend: Tensor | None = None

    def steps(self) -> list[PredictedStep]:
        """A step for each share of the fits, predicted to second order if the ray is measured."""
        answers = []
        for share in SHARES:
            logits = self.surrogate.logits + share * self.slope
            if self.bend is not None:
                logits += share**2 * self.bend
            answers.append(logits.argmax(dim=1))
        mean = self.fits.mean(axis=0)
        every = torch.stack(answers).cpu()
        return [self.surrogate.predict(share * mean, found) for share, found in zip(SHARES, every, strict=True)]

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

    Each fit subtracts the noise that is expected in the class accuracies of its own images.
    """
    folds = make_folds(surrogate.labels, seed)
    paths = []
    slopes = [torch.zeros_like(surrogate.logits) for _ in PRICES]
    for i in range(FOLDS):
        others = surrogate.subset((folds != i).nonzero().squeeze(1))
        own_goal = replace(goal, noise=others.noise())
        paths.append(fit_path(others.at, surrogate.size, others.labels, others.classes, own_goal))
        left_out = surrogate.subset((folds == i).nonzero().squeeze(1))
        for slope, fit in zip(slopes, paths[-1], strict=True):
            slope[folds == i] = left_out.change(torch.tensor(fit, dtype=torch.float32, device=slope.device))
    fits = np.array(paths)
    return [Ray(surrogate, fits[:, number], folds, slope) for number, slope in enumerate(slopes)]


def make_folds(labels: Tensor, seed: int) -> Tensor:
    """The fold of each image (n,), stratified by class."""
    return stratified_folds(labels, FOLDS, generator(seed, "folds"))
