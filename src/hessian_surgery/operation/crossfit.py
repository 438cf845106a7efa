"""Cross-fitting: what a fitted step does to images that it was not fitted to."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hessian_surgery.data.splits import stratified_folds
from hessian_surgery.evidence.accuracies import Rates, answer_rates
from hessian_surgery.evidence.leading_outputs import winners
from hessian_surgery.operation.coefficient_fit import SHARES, fit_folds
from hessian_surgery.operation.goal import Goal
from hessian_surgery.operation.surrogate import Surrogate, best_of_rest, to_tensor
from hessian_surgery.seeding import generator
from hessian_surgery.types import Array

# How many parts the images are divided into; each is predicted by a fit to the others.
FOLDS = 4
# The answer to an image that an output which is not modelled may win: it counts as wrong.
OTHER = -1

# Coefficients (K,), positions of images (n,) → their logits (n, C) after the step, measured.
AfterCoefficients = Callable[[Array, Tensor], Tensor]


@dataclass(frozen=True)
class PredictedStep:
    """A step, and how well it does on images that it was not fitted to.

    Attributes:
        coefficients: of all directions (K,).
        rates: accuracies of `answers`, overall and by class.
        answers: predicted class of each image (n,), by the fit that left out the image's fold;
            `OTHER` if it is not among the outputs that are modelled.
    """

    coefficients: Array
    rates: Rates
    answers: Tensor


def predicted_step(surrogate: Surrogate, coefficients: Array, answers: Tensor) -> PredictedStep:
    """A step with coefficients (K,) that is predicted to give answers (n,)."""
    return PredictedStep(coefficients, answer_rates(answers, surrogate.labels, surrogate.classes), answers)


@dataclass(frozen=True)
class Ray:
    """Fits at one price, each without one fold, and what they do to the images of that fold.

    It is a ray because its steps differ only in how far they go along the fits.

    Attributes:
        surrogate: the linear model of the images' logits.
        fits: coefficients (folds, K); row i is the fit without fold i.
        folds: the fold of each image (n,).
        slope: first-order change of each image's modelled logits (n, L) by the fit without its
            fold, taken all the way.
        bend: the measured change minus `slope` (n, L); None before a forward pass has measured it.
        rest: the largest logit of each image (n,) that is not modelled, at the end of the ray; None
            if all are modelled, or before it is measured.
        mapped: whether steps only scale and shift logits, so that all logits are known.
    """

    surrogate: Surrogate
    fits: Array
    folds: Tensor
    slope: Tensor
    bend: Tensor | None = None
    rest: Tensor | None = None
    mapped: bool = False

    def steps(self) -> list[PredictedStep]:
        """A step for each share of the fits, predicted to second order if the ray is measured."""
        every = torch.stack([self._answers(float(share)) for share in SHARES]).cpu()
        mean = self.fits.mean(axis=0)
        return [predicted_step(self.surrogate, share * mean, found) for share, found in zip(SHARES, every, strict=True)]

    def _answers(self, share: float) -> Tensor:
        logits = self.surrogate.kept + share * self.slope
        if self.bend is not None:
            logits += share**2 * self.bend
        answers = winners(logits, self.surrogate.outputs)
        lost = ~logits.isfinite().all(dim=1)
        if self.rest is not None and self.surrogate.rest is not None:
            # The largest of linear functions is convex: between its ends it is below the chord.
            lost |= ~(torch.lerp(self.surrogate.rest, self.rest, share) < logits.amax(dim=1))
        if not self.mapped:
            return torch.where(lost, OTHER, answers)
        places = lost.nonzero().squeeze(1)
        fits = to_tensor(share * self.fits, logits)[self.folds[places]]
        answers[places] = self.surrogate.mapped(fits, places).argmax(dim=1)
        return answers

    def measured(self, after: AfterCoefficients) -> "Ray":
        """The same ray, with every fit measured on the fold that it was not fitted to.

        All folds together take one forward pass over the moving images.
        """
        bend = torch.zeros_like(self.slope)
        rest = None if self.surrogate.rest is None else self.surrogate.rest.clone()
        for i, fit in enumerate(self.fits):
            mine = (self.folds == i).nonzero().squeeze(1)
            logits = self._after(after, fit, mine)
            outputs = self.surrogate.outputs[mine]
            bend[mine] = logits.gather(1, outputs) - self.surrogate.kept[mine] - self.slope[mine]
            if rest is not None:
                rest[mine] = best_of_rest(logits, outputs)
        return replace(self, bend=bend, rest=rest)

    def _after(self, after: AfterCoefficients, fit: Array, positions: Tensor) -> Tensor:
        """Logits (n, C) of some images after a fit: measured, where directions change them."""
        moving = self.surrogate.moving
        if moving is None:
            return after(fit, positions).to(self.slope)
        logits = self.surrogate.mapped(to_tensor(fit[None], self.slope), positions).clone()
        moves = torch.isin(positions, moving)
        if moves.any():
            logits[moves] = after(fit, positions[moves]).to(logits)
        return logits

    def followed(self) -> "Ray":
        """The same ray, of steps that only scale and shift logits: all logits are known."""
        rest = None if self.surrogate.rest is None else self.surrogate.rest.clone()
        if rest is not None:
            for i, fit in enumerate(self.fits):
                mine = (self.folds == i).nonzero().squeeze(1)
                logits = self.surrogate.mapped(to_tensor(fit[None], self.slope), mine)
                rest[mine] = best_of_rest(logits, self.surrogate.outputs[mine])
        return replace(self, rest=rest, mapped=True)


def cross_fit(surrogate: Surrogate, goal: Goal, seed: int = 0) -> list[Ray]:
    """Fit at every price, leaving out each fold in turn: one ray for each price."""
    folds = make_folds(surrogate.labels, seed).to(surrogate.labels.device)
    fits = fit_folds(surrogate, goal, folds)
    rays = []
    images = torch.arange(len(folds), device=folds.device)
    for number in range(fits.shape[1]):
        # Each image's change is that by the fit without its fold.
        slope = surrogate.change(to_tensor(fits[:, number], surrogate.logits))[folds, images]
        rays.append(Ray(surrogate, fits[:, number], folds, slope))
    return rays


def make_folds(labels: Tensor, seed: int) -> Tensor:
    """The fold of each image (n,), stratified by class."""
    return stratified_folds(labels, FOLDS, generator(seed, "folds"))
