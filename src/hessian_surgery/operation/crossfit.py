"""Cross-fitting: what a fitted step does to images that it was not fitted to."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.data.splits import stratified_folds
from hessian_surgery.evidence.rates import Rates, answer_rates, rates
from hessian_surgery.operation.fit import PRICES, SHARES, fit_path
from hessian_surgery.operation.goal import Goal
from hessian_surgery.seeding import generator, numpy_generator
from hessian_surgery.types import Array

# Parts that the images are divided into; each is foreseen by a fit to the others.
FOLDS = 4
# Resamples of the images that give a gain its standard error, and how many of those a step must gain to be worth it.
# One let steps through, chosen from 140, in half of the cases where nothing is to gain.
RESAMPLES, ERRORS = 200, 2.0

# Coefficients (K,), positions (n,) → the logits (n, C) of those images after the step, by a forward pass.
Look = Callable[[Array, Tensor], Tensor]


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
        """Some of the directions: the first ones."""
        return replace(self, changes=self.changes[:count])

    def rates(self) -> Rates:
        """The exact rates of the logits as they are."""
        return rates(self.logits, self.labels, self.classes)


@dataclass(frozen=True)
class Foreseen:
    """A step, and how it does on images that it was not fitted to.

    Attributes:
        coefficients: of all directions (K,), the mean of the folds' fits.
        rates: of the folds' answers, each by the fit to the others.
        predicted: those answers (n,).
        price: of accuracy, in the fit.
        share: of the fit that the step goes.
    """

    coefficients: Array
    rates: Rates
    predicted: Tensor
    price: float = 0.0
    share: float = 0.0


@dataclass(frozen=True)
class Ray:
    """Fits at one price, each to all but one fold, and what they do to the images of that fold.

    Attributes:
        surrogate: the images.
        price: of accuracy, in the fits.
        fits: coefficients (folds, K).
        folds: which fold each image (n,) is in.
        slope: change of the logits (n, C) by the whole fit to the other folds, to first order.
        bend: what a forward pass adds to it (n, C); None where none was made.
    """

    surrogate: Surrogate
    price: float
    fits: Array
    folds: Tensor
    slope: Tensor
    bend: Tensor | None = None

    def steps(self) -> list[Foreseen]:
        """Each share of the way; to second order where the whole way was measured."""
        found, mean = [], self.fits.mean(axis=0)
        for share in SHARES:
            logits = self.surrogate.logits + share * self.slope
            if self.bend is not None:
                logits += share**2 * self.bend
            predicted = logits.argmax(dim=1)
            seen = answer_rates(predicted, self.surrogate.labels, self.surrogate.classes)
            found.append(Foreseen(share * mean, seen, predicted, self.price, share))
        return found

    def looked_at(self, look: Look) -> "Ray":
        """The same with every fit measured on the fold that it was not fitted to: one pass over all images."""
        bend = torch.zeros_like(self.slope)
        for i, fit in enumerate(self.fits):
            mine = (self.folds == i).nonzero().squeeze(1)
            if len(mine) > 0:  # three images of each class leave the fourth fold empty
                bend[mine] = look(fit, mine).to(bend) - self.surrogate.logits[mine] - self.slope[mine]
        return replace(self, bend=bend)


def cross_fit(surrogate: Surrogate, goal: Goal, seed: int = 0) -> list[Ray]:
    """Fits at every price, each made as often as there are folds.

    Temperature, ridge and family are not chosen so: among more candidates the best one is further from what it seems
    (docs/results/surgery.md).
    """
    size, folds = len(surrogate.changes), _folds(surrogate.labels, seed)
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


class Prospect:
    """Steps along all directions, and along the first ones alone, as far as they are linear at any length.

    So an operation is foreseen to do at least as well as the biases alone, whose steps need no forward pass. Others are
    foreseen to first order, which mostly flatters them, until the choice falls on one: then its ray is measured.
    """

    def __init__(self, surrogate: Surrogate, goal: Goal, exact: int, look: Look, seed: int = 0) -> None:
        nothing = Foreseen(np.zeros(len(surrogate.changes)), surrogate.rates(), surrogate.logits.argmax(dim=1))
        self._look = look
        self._rays = cross_fit(surrogate, goal, seed)
        self._linear = [ray.steps() for ray in self._rays]
        self._measured: dict[int, list[Foreseen]] = {}
        self._settled = [nothing]
        if 0 < exact < len(surrogate.changes):
            alone = [step for ray in cross_fit(surrogate.first(exact), goal, seed) for step in ray.steps()]
            unused = (0, len(surrogate.changes) - exact)
            self._settled += [replace(step, coefficients=np.pad(step.coefficients, unused)) for step in alone]

    @property
    def steps(self) -> list[Foreseen]:
        """All of them, as they are foreseen so far; the first does nothing."""
        return self._with(set(self._measured))

    def choose(self, goal: Goal) -> Foreseen:
        """The best step for a goal of the same aim, its ray measured; the same whatever was chosen before."""
        seen: set[int] = set()
        while True:
            best = choose_foreseen(self._with(seen), goal)
            number = next((i for i, steps in enumerate(self._linear) if any(step is best for step in steps)), None)
            if number is None:
                return best
            if number not in self._measured:
                self._measured[number] = self._rays[number].looked_at(self._look).steps()
            seen.add(number)

    def _with(self, measured: set[int]) -> list[Foreseen]:
        """All steps, those of some rays as they were measured."""
        rays = (self._measured[i] if i in measured else steps for i, steps in enumerate(self._linear))
        return self._settled + [step for steps in rays for step in steps]


def choose_foreseen(found: list[Foreseen], goal: Goal) -> Foreseen:
    """The step of the best score within the goal's limits; the one that does nothing where no other is better."""
    allowed = [step for step in found if goal.allows(step.rates)] or found[:1]
    best = min(allowed, key=lambda step: (goal.score(step.rates), -step.rates.accuracy))
    return best if goal.score(best.rates) < goal.score(found[0].rates) else found[0]


def gain(before: Tensor, after: Tensor, labels: Tensor, goal: Goal, seed: int = 0) -> tuple[float, float]:
    """How much answers (n,) better the goal's score against others, and the standard error of that over images."""
    classes = len(goal.limits)
    cells = 2 * (before == labels).long() + (after == labels).long()  # right neither time, after, before, both times
    table = torch.bincount(4 * labels + cells, minlength=4 * classes).view(classes, 4).cpu().numpy()
    count = table.sum(axis=1)
    draw = numpy_generator(seed, "gain")
    # Half an image more in each cell: two images that both changed are no proof.
    shares = (table + 0.5) / (table + 0.5).sum(axis=1, keepdims=True)
    rows = [draw.multinomial(n, share, size=RESAMPLES) for n, share in zip(count, shares, strict=True)]

    def better(cells: Array) -> float:
        right = [(cells[:, k] + cells[:, 3]) / count for k in (2, 1)]
        old, new = (Rates(float(share @ count / count.sum()), share) for share in right)
        return goal.score(old) - goal.score(new)

    return better(table), float(np.std([better(cells) for cells in np.stack(rows, axis=1)]))


def _folds(labels: Tensor, seed: int) -> Tensor:
    """Which fold each image (n,) is in."""
    return stratified_folds(labels, FOLDS, generator(seed, "folds"))
