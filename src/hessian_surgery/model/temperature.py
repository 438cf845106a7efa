"""One temperature for all logits, fitted to labels."""

import math

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn.functional import cross_entropy

# Temperatures are sought between 1 / WIDEST and WIDEST.
WIDEST = 20.0


def has_temperature(logits: Tensor, labels: Tensor) -> bool:
    """Whether some T fits best: where every answer is right, the lower, the better."""
    return bool((logits.argmax(dim=1) != labels.to(logits.device)).any())


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The T that makes the cross-entropy of logits / T the least, for logits (N, C), labels (N,).

    The cross-entropy is convex in 1 / T, so it has one minimum.
    """
    logits, labels = logits.double(), labels.to(logits.device)

    def loss(log_t: float) -> float:
        return float(cross_entropy(logits * math.exp(-log_t), labels))

    with torch.no_grad():
        widest = math.log(WIDEST)
        found = minimize_scalar(loss, bounds=(-widest, widest), method="bounded", options={"xatol": 1e-5})
    return math.exp(float(found.x))
