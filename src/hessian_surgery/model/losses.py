"""Training losses: functions of logits (n, C) and labels (n,), averaged over samples (eq. 1)."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from hessian_surgery.errors import require
from hessian_surgery.parse_numbers import parse_numbers

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
LossName: TypeAlias = Literal["cross-entropy", "focal", "class-balanced", "label-smoothing", "class-weights"]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean of −log p_y (eq. 1).

    Example:
        >>> hs.cross_entropy(torch.zeros(1, 2), torch.tensor([0]))
        tensor(0.6931)
    """
    return F.cross_entropy(logits, labels)


def focal(logits: Tensor, labels: Tensor, gamma: float = 2.0) -> Tensor:
    """Mean of −(1 − p_y)^γ log p_y (Lin et al. 2017).

    Example:
        >>> hs.focal(torch.zeros(1, 2), torch.tensor([0]))  # a quarter of the cross-entropy
        tensor(0.1733)
    """
    log_p = F.log_softmax(logits, dim=1).gather(1, labels[:, None]).squeeze(1)
    return -((1 - log_p.exp()) ** gamma * log_p).mean()


def label_smoothing(logits: Tensor, labels: Tensor, smoothing: float = 0.1) -> Tensor:
    """Mean of −(1 − ε) log p_y − (ε / C) Σ_j log p_j (Szegedy et al. 2016).

    Args:
        logits: (n, C).
        labels: (n,).
        smoothing: ε, the share of the target that all classes have alike.

    Example:
        >>> hs.label_smoothing(torch.zeros(1, 2), torch.tensor([0]))
        tensor(0.6931)
    """
    return F.cross_entropy(logits, labels, label_smoothing=smoothing)


def class_weighted(weights: Sequence[float] | Tensor) -> Loss:
    """Mean of −w_y log p_y.

    Args:
        weights: of each class (C,), in any unit: they are scaled to sum to C.

    Example:
        >>> loss = hs.class_weighted([1, 3])
        >>> loss(torch.zeros(2, 2), torch.tensor([0, 1]))
        tensor(0.6931)
    """
    scaled = torch.as_tensor(weights, dtype=torch.float64)
    scaled = scaled * (len(scaled) / scaled.sum())

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        each = F.cross_entropy(logits, labels, reduction="none")
        return (each * scaled.to(logits.device, logits.dtype)[labels]).mean()

    return loss


def class_balanced(counts: Tensor, beta: float | None = None) -> Loss:
    """Mean of −w_y log p_y, with class weights w_j ∝ 1 / E_j (Cui et al. 2019).

    E_j = (1 − β^n_j) / (1 − β) is the effective number of samples. The weights of the C classes sum
    to C; a class without samples has weight 0.

    Args:
        counts: n_j, the training samples of each class (C,).
        beta: β; by default (N − 1) / N with N = Σ n_j.

    Example:
        >>> loss = hs.class_balanced(torch.tensor([100, 10]))
        >>> loss(torch.zeros(2, 2), torch.tensor([0, 1])).item() > 0
        True
    """
    return class_weighted(class_weights(counts, beta))


def class_weights(counts: Tensor, beta: float | None = None) -> Tensor:
    """The weights (C,) of `class_balanced`."""
    n = counts.double()
    beta = 1 - 1 / float(n.sum()) if beta is None else beta
    weights = torch.where(n > 0, (1 - beta) / (1 - beta**n).clamp(min=1e-300), 0)
    return weights * (len(n) / weights.sum())


def check_loss(text: str) -> tuple[LossName, tuple[float, ...]]:
    """Read a loss such as `focal`, `focal:1.5` or `class-weights:1,2,5`: its name and its numbers.

    `focal` takes γ, `class-balanced` β and `label-smoothing` ε; each has a default.
    """
    name, colon, written = text.partition(":")
    known = get_args(LossName)
    require(name in known, "loss", text, f"one of {', '.join(known)}")
    numbers = parse_numbers("loss", written) if colon else ()
    require(all(map(math.isfinite, numbers)), "loss", text, "a loss with finite numbers")
    if name == "class-weights":
        require(len(numbers) > 1 and min(numbers) > 0, "loss", text, "such as class-weights:1,2,5, with one per class")
        return "class-weights", numbers
    require(not numbers or (len(numbers) == 1 and name != "cross-entropy"), "loss", text, f"{name} alone")
    limit = math.inf if name == "focal" else 1
    require(all(0 <= number < limit for number in numbers), "loss", text, f"{name}:X with X from 0 and below {limit:g}")
    return name, numbers  # type: ignore[return-value]


def make_loss(text: str, counts: Tensor) -> Loss:
    """Make a loss by name, as `check_loss` reads it; `counts` (C,) are each class's samples."""
    name, numbers = check_loss(text)
    if name == "class-weights":
        fits = len(numbers) == len(counts)
        require(fits, "loss", text, f"class-weights with {len(counts)} numbers, one for each class")
        return class_weighted(torch.tensor(numbers, dtype=torch.float64, device=counts.device))
    if name == "class-balanced":
        return class_balanced(counts, *numbers)
    if name == "label-smoothing":
        return partial(label_smoothing, smoothing=numbers[0]) if numbers else label_smoothing
    if name == "focal":
        return partial(focal, gamma=numbers[0]) if numbers else focal
    return cross_entropy
