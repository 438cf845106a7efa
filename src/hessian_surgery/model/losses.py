"""Training losses: functions of logits (n, C) and labels (n,), averaged over samples (eq. 1)."""

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from hessian_surgery.errors import InputError

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
LossName: TypeAlias = Literal["cross-entropy", "focal", "class-balanced"]


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
    weights = class_weights(counts, beta)

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        each = F.cross_entropy(logits, labels, reduction="none")
        return (each * weights.to(logits.device, logits.dtype)[labels]).mean()

    return loss


def class_weights(counts: Tensor, beta: float | None = None) -> Tensor:
    """The weights (C,) of `class_balanced`."""
    n = counts.double()
    beta = 1 - 1 / float(n.sum()) if beta is None else beta
    weights = torch.where(n > 0, (1 - beta) / (1 - beta**n).clamp(min=1e-300), 0)
    return weights * (len(n) / weights.sum())


def make_loss(name: LossName, counts: Tensor) -> Loss:
    """Make a loss by name; `counts` (C,) are the training samples of each class."""
    if name not in get_args(LossName):
        raise InputError(f"loss: got {name!r}; give one of {', '.join(get_args(LossName))}")
    if name == "class-balanced":
        return class_balanced(counts)
    return focal if name == "focal" else cross_entropy
