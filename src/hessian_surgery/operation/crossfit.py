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

    def at(self, coefficients: Tensor) -> Tensor:
        """Logits (n, C) after a step with coefficients (K,)."""
        return self.logits + torch.einsum("k,knc->nc", coefficients, self.changes)

    def subset(self, positions: Tensor) -> "Surrogate":
        """The same for some of the images."""
        changes = self.changes[:, positions]
        started = None if self.started is None else self.started[positions]
        return Surrogate(self.logits[positions], changes, self.labels[positions], self.classes, started)

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
    size = len(surrogate.changes)
    folds = make_folds(surrogate.labels, seed)
    others = [surrogate.subset((folds != i).nonzero().squeeze(1)) for i in range(FOLDS)]
    goals = [replace(goal, noise=part.noise()) for part in others]
    paths = np.array(
        [fit_path(part.at, size, part.labels, part.classes, own) for part, own in zip(others, goals, strict=True)]
    )
    rays = []
    for number in range(len(PRICES)):
        slope = torch.zeros_like(surrogate.logits)
        for i, fits in enumerate(paths):
            coefficients = torch.tensor(fits[number], dtype=torch.float32, device=slope.device)
            slope[folds == i] = torch.einsum("k,knc->nc", coefficients, surrogate.changes[:, folds == i])
        rays.append(Ray(surrogate, paths[:, number], folds, slope))
    return rays


def make_folds(labels: Tensor, seed: int) -> Tensor:
    """The fold of each image (n,), stratified by class."""
    return stratified_folds(labels, FOLDS, generator(seed, "folds"))
