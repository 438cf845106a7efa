"""Fitting coefficients to a soft goal, at several prices of accuracy."""

from collections.abc import Callable

import numpy as np
import torch
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits
from torch import Tensor

from hessian_surgery.cuda_graphs import recorded_function
from hessian_surgery.evidence.accuracies import TEMPERATURE, logit_unit, rates, soft_rates
from hessian_surgery.operation.goal import Goal
from hessian_surgery.types import Array

# What a unit of accuracy is worth in units of σ, from the most cautious fit to the boldest.
PRICES = (4.0, 2.8, 2.0, 1.4, 1.0, 0.7)
# How much of a fit a candidate takes: a shorter step generalises better.
SHARES = tuple(np.arange(1, 21) / 20)
# Penalty on the square of each coefficient, in units of `logit_unit`: a trust region in the space
# of logits. It is on the sum of the squares, so that no coefficient is freer where there are many.
RIDGE = 0.03

Logits = Callable[[Tensor], Tensor]


def fit_path(
    logits_at: Logits,
    size: int,
    labels: Tensor,
    classes: int,
    goal: Goal | None = None,
) -> list[Array]:
    """Coefficients (size,) that minimise goal − price · accuracy + ridge · Σ c² at each price.

    Args:
        logits_at: coefficients → logits (n, C), differentiable. 0 gives the logits as they are; a
            coefficient of 1 moves them by about `logit_unit`.
        size: how many coefficients there are.
        labels: (n,).
        classes: C.
        goal: by default σ, with no class protected.
    """
    # With so few numbers, more threads would only wait for each other.
    with threadpool_limits(1, user_api="blas"):
        return _fit_path(logits_at, size, labels, classes, goal or Goal("sigma", 0.0, np.full(classes, -np.inf)))


def _fit_path(logits_at: Logits, size: int, labels: Tensor, classes: int, goal: Goal) -> list[Array]:
    start = logits_at(torch.zeros(size, device=labels.device))
    temperature = TEMPERATURE * logit_unit(start)
    present = rates(start, labels, classes)
    _, soft_present = soft_rates(start, labels, classes, temperature)
    soft_goal = goal.soft(present, soft_present)

    def value_and_slope(coefficients: Tensor, price: Tensor) -> Tensor:
        free = coefficients.detach().requires_grad_()
        soft = soft_rates(logits_at(free), labels, classes, temperature)
        value = soft_goal(*soft, price) + RIDGE * free.square().sum()
        return torch.cat([value.detach()[None], *torch.autograd.grad(value, free)])

    examples = (torch.zeros(size, device=labels.device), torch.ones((), device=labels.device))
    evaluate = recorded_function(value_and_slope, *examples)
    found = []
    values = np.zeros(size)
    for price in PRICES:
        worth = torch.tensor(price, device=labels.device)

        def objective(c: Array, worth: Tensor = worth) -> tuple[float, Array]:
            both = evaluate(torch.tensor(c, dtype=torch.float32, device=labels.device), worth).double().cpu().numpy()
            return float(both[0]), both[1:]

        values = minimize(objective, values, jac=True, method="L-BFGS-B", options={"maxiter": 40, "ftol": 1e-6}).x
        found.append(values)
    return found
