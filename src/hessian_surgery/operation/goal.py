"""Goal: what an operation aims at, and what it must not break."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hessian_surgery.evidence.accuracies import Rates
from hessian_surgery.evidence.class_noise import ClassNoise, no_noise
from hessian_surgery.types import Array

Target: TypeAlias = Literal["sigma", "worst"]

# If the worst class is lifted, class accuracies this close to it, as fractions, count with it.
NEAR_WORST = 0.02
# What it costs, in units of σ, if protected classes fall below their limits (a mean over classes).
PENALTY = 5.0
# Rounding in comparisons of shares.
SLACK = 1e-9


@dataclass(frozen=True)
class Goal:
    """What to make small, and within which limits. All figures are fractions.

    Attributes:
        aim: σ, or the worst class; with targets, what comes after they are met.
        floor: the least accuracy over all images.
        limits: the least accuracy of each class (C,); −inf if it is not protected.
        targets: accuracies to reach, by class number.
        noise: what is known of the sampling noise in the class accuracies; by default there is
            none. The part that is expected to be noise is subtracted, so no step chases it.
        surety: how many standard errors targets must be exceeded by, when a step is chosen.
        limit_surety: how many standard errors limits must hold by, likewise; one number, or one
            for each class (C,).
    """

    aim: Target
    floor: float
    limits: Array
    targets: Mapping[int, float] = field(default_factory=dict)
    noise: ClassNoise | None = None
    surety: float = 0.0
    limit_surety: float | Array = 0.0

    @cached_property
    def known_noise(self) -> ClassNoise:
        """The noise, zero if there is none."""
        return no_noise(len(self.limits)) if self.noise is None else self.noise

    def allows(self, rates: Rates) -> bool:
        """Whether the floor and every class's limit hold."""
        return rates.accuracy >= self.floor - SLACK and bool((rates.per_class >= self.limits - SLACK).all())

    def shortfall(self, rates: Rates) -> float:
        """How far the targets are missed, on average; noise is subtracted."""
        return float(self._shortfalls(rates.per_class - self.known_noise.expected))

    def score(self, rates: Rates) -> float:
        """What to make small: first the targets' shortfall, then σ or the worst class's error."""
        return float(self.scores(rates.per_class))

    def scores(self, per_class: NDArray[np.floating[Any]]) -> Array:
        """The score of each row of class accuracies (…, C); noise is subtracted.

        What the noise hides is part of σ, whatever the step.
        """
        noise = self.known_noise
        likely = per_class - noise.expected
        spread = np.hypot(np.std(likely, axis=-1), noise.unseen)
        rest = spread if self.aim == "sigma" else 1 - np.min(likely, axis=-1)
        if not self.targets:
            return np.asarray(rest)
        return np.asarray(100 * np.maximum(0.0, self._shortfalls(likely) - SLACK) + rest)

    def _shortfalls(self, likely: Array) -> Array:
        """How far class accuracies (…, C) without noise miss the targets, on average."""
        error = self.known_noise.error
        wanted = {j: value + self.surety * error[j] for j, value in self.targets.items()}
        missed = [np.maximum(0.0, value - likely[..., j]) for j, value in wanted.items()]
        return np.asarray(np.mean(missed, axis=0)) if missed else np.zeros(likely.shape[:-1])

    def soft(self, present: Rates, soft_present: Tensor) -> "SoftGoal":
        """The goal for soft class accuracies (C,).

        Limits and targets are shifted by how far the soft accuracies are from the exact ones now.

        Args:
            present: exact rates of the model as it is.
            soft_present: its soft class accuracies (C,).
        """
        device = soft_present.device
        slack = torch.tensor(present.per_class - self.limits, dtype=torch.float32, device=device)
        noise = self.known_noise
        likely = present.per_class - noise.expected
        # A fit aims at twice what a choice demands to spare: on other images it falls short.
        short = [value + 2 * self.surety * noise.error[j] - likely[j] for j, value in self.targets.items()]
        rows = torch.tensor(list(self.targets), dtype=torch.long, device=device)
        wanted = soft_present[rows] + torch.tensor(short, dtype=torch.float32, device=device) if short else None
        expected = torch.tensor(noise.expected, dtype=torch.float32, device=device)
        return SoftGoal(self.aim, soft_present - slack.clamp(min=0), expected, rows, wanted)


@dataclass(frozen=True)
class SoftGoal:
    """A goal as a smooth function of soft accuracies; see `Goal.soft`.

    Its tensors may have leading axes, for several goals of one kind at once.
    """

    aim: Target
    limits: Tensor
    noise: Tensor
    rows: Tensor
    wanted: Tensor | None

    def __call__(self, accuracy: Tensor, per_class: Tensor, price: float | Tensor) -> Tensor:
        """What a fit makes small (…): value − price · accuracy + penalty.

        The value is σ, minus the soft worst accuracy, or the targets' shortfall.

        Args:
            accuracy: over all images (…).
            per_class: of each class (…, C).
            price: (…).
        """
        if self.wanted is not None:
            missed = torch.relu(self.wanted - per_class[..., self.rows])
            value = missed.mean(dim=-1) + (missed.square().mean(dim=-1) + 1e-12).sqrt()
        elif self.aim == "sigma":
            value = (per_class - self.noise).std(dim=-1, correction=0)
        else:
            value = NEAR_WORST * torch.logsumexp((self.noise - per_class) / NEAR_WORST, dim=-1)
        return value - price * accuracy + PENALTY * torch.relu(self.limits - per_class).mean(dim=-1)

    def only(self, places: Tensor) -> "SoftGoal":
        """Some of several goals."""
        wanted = None if self.wanted is None else self.wanted[places]
        return replace(self, limits=self.limits[places], noise=self.noise[places], wanted=wanted)


def stack_goals(goals: Sequence[SoftGoal], times: int) -> SoftGoal:
    """Goals of one kind as one, with each of them repeated so many times along the first axis."""

    def stacked(tensors: list[Tensor]) -> Tensor:
        return torch.stack(tensors).repeat_interleave(times, dim=0)

    wanted = [goal.wanted for goal in goals if goal.wanted is not None]
    return replace(
        goals[0],
        limits=stacked([goal.limits for goal in goals]),
        noise=stacked([goal.noise for goal in goals]),
        wanted=stacked(wanted) if wanted else None,
    )


def make_goal(
    base: Rates,
    classes: tuple[str, ...],
    *,
    aim: Target = "sigma",
    budget: float = 0.0,
    protected: NDArray[np.bool_],
    max_drop: float = 0.0,
    targets: Mapping[str, float] | None = None,
    noise: ClassNoise | None = None,
    surety: float = 0.0,
    limit_surety: float = 0.0,
) -> Goal:
    """The goal, from what a user says about the starting model.

    Args:
        base: its rates on the calibration images.
        classes: their names.
        aim: see `Goal`.
        budget: accuracy that may be given up.
        protected: which classes (C,) bool may lose no more than `max_drop`.
        max_drop: how much of its accuracy.
        targets: accuracies to reach, by class name.
        noise: see `Goal`.
        surety: see `Goal`.
        limit_surety: see `Goal`.
    """
    numbers = {classes.index(name): value for name, value in (targets or {}).items()}
    limits = np.where(protected, base.per_class - max_drop, -np.inf)
    return Goal(aim, base.accuracy - budget, limits, numbers, noise, surety, limit_surety)
