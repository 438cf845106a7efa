"""A linear head fitted to features, near the present one: class-balanced logistic regression."""

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
    counts = torch.bincount(labels, minlength=classes)
    balance = torch.where(counts > 0, len(labels) / (classes * counts.clamp(min=1)), 0).to(features)
    outputs, width = weight.shape
    # With features of unit mean square, a pull means the same for every network.
    scale = features.square().mean().sqrt().clamp(min=1e-12)
    scaled = features / scale
    start = features @ weight.T + bias

    def objective(values: Array) -> tuple[float, Array]:
        change = torch.tensor(values, dtype=features.dtype, device=features.device, requires_grad=True)
        rows = change.view(outputs, width + 1)
        logits = start + scaled @ rows[:, :width].T
        if shifts:
            logits = logits + rows[:, width]
        each = F.cross_entropy(logits, labels, reduction="none") * balance[labels]
        value = each.mean() + pull / 2 * change.square().sum()
        (slope,) = torch.autograd.grad(value, change)
        return value.item(), slope.double().cpu().numpy()

    zero = np.zeros(outputs * (width + 1))
    best = minimize(objective, zero, jac=True, method="L-BFGS-B", options={"maxiter": 60, "ftol": 1e-6}).x
    rows = torch.tensor(best, dtype=features.dtype, device=features.device).view(outputs, width + 1)
    return weight + rows[:, :width] / scale, bias + rows[:, width]
