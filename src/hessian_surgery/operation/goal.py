"""Goal: what a planned operation aims at, and what it must not break."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hessian_surgery.errors import InputError
from hessian_surgery.evidence.metrics import sigma
from hessian_surgery.evidence.rates import Rates
from hessian_surgery.paper.plan import Target
from hessian_surgery.types import Array

# Class accuracies closer to the worst than this, as fractions, count with it where the worst class is lifted.
NEAR_WORST = 0.02
# What a unit of the protected classes' loss beyond their limits, in the mean over all classes, costs in units of σ.
PENALTY = 5.0
# The most that a protected class may lose unless something else is said, where there are images enough to tell.
MOST_LOST = 0.1
# Rounding in comparisons of shares.
SLACK = 1e-9


@dataclass(frozen=True)
class Goal:
    """What to make small, and within which limits. All figures are fractions, against the starting model.

    Attributes:
        aim: σ, or the worst class; with targets, what is left to do once they are met.
        targets: accuracies to reach, by class number.
        floor: the least accuracy over all images.
        limits: the least accuracy of each class (C,); −inf where it may fall.
    """

    aim: Target
    floor: float
    limits: Array
    targets: Mapping[int, float] = field(default_factory=dict)

    def allows(self, rates: Rates) -> bool:
        """Whether the floor and every class's limit hold."""
        return rates.accuracy >= self.floor - SLACK and bool((rates.per_class >= self.limits - SLACK).all())

    def shortfall(self, rates: Rates) -> float:
        """How far targets are missed, on average over them."""
        missed = [max(0.0, wanted - rates.per_class[j]) for j, wanted in self.targets.items()]
        return float(np.mean(missed)) if missed else 0.0

    def score(self, rates: Rates) -> float:
        """What is to be made small: the shortfall of the targets first, then σ or the worst class's error."""
        rest = rates.sigma if self.aim == "sigma" else 1 - float(rates.per_class.min())
        return rest if not self.targets else 100 * max(0.0, self.shortfall(rates) - SLACK) + rest

    def soft(self, present: Rates, soft_present: Tensor) -> "SoftGoal":
        """The goal for soft class accuracies (C,), which stand at `soft_present` where the exact ones are `present`."""
        device = soft_present.device
        slack = torch.tensor(present.per_class - self.limits, dtype=torch.float32, device=device)
        wanted = [soft_present[j] + target - present.per_class[j] for j, target in self.targets.items()]
        rows = torch.tensor(list(self.targets), dtype=torch.long, device=device)
        return SoftGoal(self.aim, soft_present - slack.clamp(min=0), rows, torch.stack(wanted) if wanted else None)


@dataclass(frozen=True)
class SoftGoal:
    """A goal as a smooth function of soft accuracies: see `Goal.soft`."""

    aim: Target
    limits: Tensor
    rows: Tensor
    wanted: Tensor | None

    def __call__(self, accuracy: Tensor, per_class: Tensor, price: float | Tensor) -> Tensor:
        """What a fit makes small: σ (or minus the soft worst class, or the targets' shortfall) − price · accuracy."""
        if self.wanted is not None:
            missed = torch.relu(self.wanted - per_class[self.rows])
            value = missed.mean() + (missed.square().mean() + 1e-12).sqrt()
        elif self.aim == "sigma":
            value = per_class.std(correction=0)
        else:
            value = NEAR_WORST * torch.logsumexp(-per_class / NEAR_WORST, dim=0)
        return value - price * accuracy + PENALTY * torch.relu(self.limits - per_class).mean()


def usual_threshold(per_class: Array) -> float:
    """Above which accuracy a class is strong, and protected, unless something else is said: the mean."""
    return float(per_class.mean())


def usual_drop(per_class: Array, count: NDArray[np.integer[Any]]) -> float:
    """What a protected class may lose unless something else is said: σ, but no more than `MOST_LOST`.

    Nor less than twice the standard error of a usual class, from the accuracies and image counts (C,) of all classes:
    what cannot be told from noise protects nothing, and stands in the way of everything where classes are many.
    """
    mean = float(per_class.mean())
    noise = 2 * float(np.sqrt(mean * (1 - mean) / np.median(count)))
    return max(min(sigma(per_class), MOST_LOST), noise)


def make_goal(
    base: Rates,
    classes: tuple[str, ...],
    *,
    aim: Target = "sigma",
    budget: float = 0.0,
    protected: NDArray[np.bool_],
    max_drop: float = 0.0,
    targets: Mapping[str, float] | None = None,
) -> Goal:
    """The goal from what a user says of the starting model.

    Args:
        base: its rates on the images that are decided on.
        classes: their names.
        aim: see `Goal`.
        budget: accuracy that may be given up.
        protected: which classes (C,) bool may lose no more than `max_drop`.
        max_drop: that much of its accuracy.
        targets: accuracies to reach, by name.
    """
    numbers = {class_number(name, classes, "target"): value for name, value in (targets or {}).items()}
    for j, value in numbers.items():
        if not 0 < value <= 1:
            raise InputError(f"target: got {classes[j]}={value:g}; give an accuracy as a fraction, such as 0.8")
    limits = np.where(protected, base.per_class - max_drop, -np.inf)
    return Goal(aim, base.accuracy - budget, limits, numbers)


def class_number(name: str, classes: tuple[str, ...], argument: str) -> int:
    """Where a class stands, by its name."""
    if name not in classes:
        known = ", ".join(classes[:12]) + (", …" if len(classes) > 12 else "")
        raise InputError(f"{argument}: got {name!r}, which is no class; there are {known}")
    return classes.index(name)
