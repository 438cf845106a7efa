"""Fitting coefficients to a soft goal, at several prices of accuracy and without each fold."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.cuda_graphs import can_record, recorded_function
from hessian_surgery.evidence.accuracies import TEMPERATURE, answer_rates, logit_unit
from hessian_surgery.operation.goal import Goal, SoftGoal, stack_goals
from hessian_surgery.operation.minimize import minimize_all
from hessian_surgery.operation.surrogate import Surrogate
from hessian_surgery.types import Array

# What a unit of accuracy is worth in units of σ, from the most cautious fit to the boldest.
PRICES = (4.0, 2.8, 2.0, 1.4, 1.0, 0.7)
# How much of a fit a candidate takes: a shorter step generalises better.
SHARES = tuple(np.arange(1, 21) / 20)
# Penalty on the square of each coefficient, in units of `logit_unit`: a trust region in the space
# of logits. It is on the sum of the squares, so that no coefficient is freer where there are many.
RIDGE = 0.03


def fit_folds(surrogate: Surrogate, goal: Goal, folds: Tensor) -> Array:
    """Coefficients (F, P, K) that minimise goal − price · accuracy + ridge · Σ c².

    There is a fit without each of F folds at each of P prices. Each subtracts the noise that is
    expected in the class accuracies of its own images. All are fitted at once.

    Args:
        surrogate: the linear model of the images' logits.
        goal: what to make small, and the limits; its noise plays no part.
        folds: the fold of each image (n,), from 0.
    """
    objective = _make_objective(surrogate, goal, folds)
    start = surrogate.logits.new_zeros(len(objective.price), surrogate.size)
    if can_record(start.device):
        recorded = recorded_function(objective.value_and_slope, start)
        found = minimize_all(lambda at, _: recorded(at), start)
    else:
        found = minimize_all(lambda at, still: objective.only(still).value_and_slope(at[still]), start)
    return found.double().cpu().numpy().reshape(-1, len(PRICES), surrogate.size)


@dataclass(frozen=True)
class _Objective:
    """What fits minimise: B functions of K coefficients.

    Attributes:
        surrogate: the linear model of the images' logits.
        temperature: of the softmax (B, 1, 1), in units of logits.
        price: what accuracy is worth (B,).
        weight: 1 for the images that a fit sees (B, n), 0 for the others.
        images: how many it sees (B,).
        per_class: how many of each class (B, C).
        goal: the soft goals of all fits; None until the soft accuracies of doing nothing are known.
    """

    surrogate: Surrogate
    temperature: Tensor
    price: Tensor
    weight: Tensor
    images: Tensor
    per_class: Tensor
    goal: SoftGoal | None = None

    def only(self, rows: Tensor) -> "_Objective":
        """Some of the functions."""
        assert self.goal is not None  # it is set before a fit starts
        return _Objective(
            self.surrogate,
            self.temperature[rows],
            self.price[rows],
            self.weight[rows],
            self.images[rows],
            self.per_class[rows],
            self.goal.only(rows),
        )

    def shares(self, coefficients: Tensor) -> Tensor:
        """Softmax probabilities (B, n, L) of the modelled outputs after steps (B, K).

        The largest of the other logits counts too, as it is now.
        """
        logits = self.surrogate.at(coefficients)
        rest = self.surrogate.rest
        if rest is None:
            return torch.softmax(logits.div_(self.temperature), dim=2)
        beside = rest[:, None].expand(len(logits), -1, 1)
        return torch.softmax(torch.cat([logits, beside], dim=2).div_(self.temperature), dim=2)[..., :-1]

    def soft_accuracies(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Soft accuracies over all images (B,), and by class (B, C), from the `shares` there.

        The true class comes first among the modelled outputs.
        """
        right = shares[..., 0] * self.weight
        return right.sum(dim=1) / self.images, self.surrogate.by_class.collect(right) / self.per_class

    def value_and_slope(self, coefficients: Tensor) -> Tensor:
        """The values and, beside them, their slopes (B, 1 + K) at coefficients (B, K).

        The true class's probability p_0 has the slope p_0 (δ_0l − p_l) / temperature along logit l.
        """
        assert self.goal is not None  # it is set before a fit starts
        shares = self.shares(coefficients)
        accuracy, per_class = (soft.requires_grad_() for soft in self.soft_accuracies(shares))
        with torch.enable_grad():
            values = self.goal(accuracy, per_class, self.price)
            by_all, by_class = torch.autograd.grad(values.sum(), (accuracy, per_class))
        each = (by_all / self.images)[:, None] + self.surrogate.by_class.spread(by_class / self.per_class)
        each = (each * self.weight * shares[..., 0]).div_(self.temperature[..., 0])
        slopes = shares.mul_(-each[..., None])
        slopes[..., 0] += each
        ridged = values.detach() + RIDGE * coefficients.square().sum(dim=1)
        return torch.cat([ridged[:, None], self.surrogate.pull_back(slopes) + 2 * RIDGE * coefficients], dim=1)


def _make_objective(surrogate: Surrogate, goal: Goal, folds: Tensor) -> _Objective:
    """The functions of all fits, fold by fold, and of each fold price by price."""
    like = surrogate.logits
    own = [(folds != i).nonzero().squeeze(1) for i in range(int(folds.max()) + 1)]

    def each(by_fold: Tensor) -> Tensor:
        return by_fold.repeat_interleave(len(PRICES), dim=0)

    units = like.new_tensor([logit_unit(surrogate.kept[part]) for part in own])
    seen = torch.stack([(folds != i).to(like) for i in range(len(own))])
    objective = _Objective(
        surrogate,
        temperature=each(TEMPERATURE * units)[:, None, None],
        price=like.new_tensor(PRICES).repeat(len(own)),
        weight=each(seen),
        images=each(seen.sum(dim=1)),
        per_class=each(surrogate.by_class.collect(seen)),
    )
    nothing = like.new_zeros(len(objective.price), surrogate.size)
    _, soft = objective.soft_accuracies(objective.shares(nothing))
    answers = surrogate.logits.argmax(dim=1)
    goals = []
    for i, part in enumerate(own):
        present = answer_rates(answers[part], surrogate.labels[part], surrogate.classes)
        goals.append(replace(goal, noise=surrogate.noise(part)).soft(present, soft[i * len(PRICES)]))
    return replace(objective, goal=stack_goals(goals, len(PRICES)))
