"""Cross-fitting: what a fitted step does to images that it was not fitted to."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.data.splits import stratified_folds
from hessian_surgery.metrics import Array
from hessian_surgery.objective import Rates, answer_rates, rates
from hessian_surgery.seeding import generator, numpy_generator
from hessian_surgery.surgery.fitting import PRICES, SHARES, fit_path
from hessian_surgery.surgery.goal import Goal

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


def foresee(surrogate: Surrogate, goal: Goal, exact: int, look: Look, seed: int = 0) -> list[Foreseen]:
    """Steps along all directions, and along the first ones alone, of which so many are `exact`: linear at any length.

    So an operation is at least foreseen to do as well as the biases alone, whose steps need no forward pass. The first
    step does nothing.
    """
    found = cross_fit(surrogate, goal, seed, look)
    if not 0 < exact < len(surrogate.changes):
        return found
    alone = cross_fit(surrogate.first(exact), goal, seed)[1:]
    unused = len(surrogate.changes) - exact
    return found + [replace(step, coefficients=np.pad(step.coefficients, (0, unused))) for step in alone]


def cross_fit(surrogate: Surrogate, goal: Goal, seed: int = 0, look: Look | None = None) -> list[Foreseen]:
    """Steps at every price and share, each foreseen by cross-fitting; the first does nothing.

    Temperature, ridge and family are not chosen so: among more candidates the best one is further from what it seems
    (docs/results/surgery.md).

    Args:
        surrogate: what fits are made to.
        goal: what they make small.
        seed: of the folds.
        look: measures each fit on the images that it was not fitted to, all prices in one pass each; its shorter steps
            are then foreseen to second order. Without it all are to first order.
    """
    size, folds = len(surrogate.changes), _folds(surrogate.labels, seed)
    nothing = Foreseen(np.zeros(size), surrogate.rates(), surrogate.logits.argmax(dim=1))
    others = [surrogate.subset((folds != i).nonzero().squeeze(1)) for i in range(FOLDS)]
    paths = [fit_path(part.at, size, part.labels, part.classes, goal) for part in others]
    return [nothing, *_foresee(surrogate, np.array(paths), folds, look)]


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


def _foresee(surrogate: Surrogate, paths: Array, folds: Tensor, look: Look | None) -> Iterator[Foreseen]:
    """The steps of fits (folds, prices, K), each to all but one fold's images."""
    for number, price in enumerate(PRICES):
        slope, bend = torch.zeros_like(surrogate.logits), torch.zeros_like(surrogate.logits)
        for i, fits in enumerate(paths):
            mine = (folds == i).nonzero().squeeze(1)
            coefficients = torch.tensor(fits[number], dtype=torch.float32, device=slope.device)
            slope[mine] = torch.einsum("k,knc->nc", coefficients, surrogate.changes[:, mine])
            if look is not None:
                bend[mine] = look(fits[number], mine).to(bend) - surrogate.logits[mine] - slope[mine]
        mean = paths[:, number].mean(axis=0)
        for share in SHARES:
            predicted = (surrogate.logits + share * slope + share**2 * bend).argmax(dim=1)
            seen = answer_rates(predicted, surrogate.labels, surrogate.classes)
            yield Foreseen(share * mean, seen, predicted, price, share)


def _folds(labels: Tensor, seed: int) -> Tensor:
    """Which fold each image (n,) is in."""
    return stratified_folds(labels, FOLDS, generator(seed, "folds"))
