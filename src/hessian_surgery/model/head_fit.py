"""A linear head fitted to features, near the present one: class-balanced logistic regression."""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor

from hessian_surgery.types import Array


def fit_head(
    features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor, pull: float, classes: int, shifts: bool = True
) -> tuple[Tensor, Tensor]:
    """Find the head (C, d), (C,) that minimizes class-balanced cross-entropy + pull/2 · ‖change‖².

    The search starts at the present head, `weight` and `bias`. Without `shifts` the bias stays.
    """
    # With features of unit mean square, a pull means the same for every network.
    scale = features.square().mean().sqrt().clamp(min=1e-12)
    start = features @ weight.T + bias
    objective = head_objective(features / scale, labels, start, pull, classes, shifts)
    outputs, width = weight.shape
    zero = np.zeros(outputs * (width + 1))
    best = minimize(objective, zero, jac=True, method="L-BFGS-B", options={"maxiter": 60, "ftol": 1e-6}).x
    rows = torch.tensor(best, dtype=features.dtype, device=features.device).view(outputs, width + 1)
    return weight + rows[:, :width] / scale, bias + rows[:, width]


def head_objective(
    features: Tensor, labels: Tensor, start: Tensor, pull: float, classes: int, shifts: bool = True
) -> Callable[[Array], tuple[float, Array]]:
    """What a fit makes small, and its slope, as a function of the change of the head C · (d + 1).

    Each class's weights (d,) are followed by its bias.

    Args:
        features: of the images (n, d), of unit mean square.
        labels: their classes (n,).
        start: their logits (n, C) without a change.
        pull: towards no change.
        classes: how many classes there are, C or fewer.
        shifts: whether biases change.
    """
    counts = torch.bincount(labels, minlength=classes)
    balance = torch.where(counts > 0, len(labels) / (classes * counts.clamp(min=1)), 0).to(features)
    outputs, width = start.shape[1], features.shape[1]

    def objective(values: Array) -> tuple[float, Array]:
        change = torch.tensor(values, dtype=features.dtype, device=features.device, requires_grad=True)
        rows = change.view(outputs, width + 1)
        logits = start + features @ rows[:, :width].T
        if shifts:
            logits = logits + rows[:, width]
        each = F.cross_entropy(logits, labels, reduction="none") * balance[labels]
        value = each.mean() + pull / 2 * change.square().sum()
        (slope,) = torch.autograd.grad(value, change)
        return value.item(), slope.double().cpu().numpy()

    return objective
