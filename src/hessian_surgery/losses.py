"""Training losses as functions of logits (n, C) and labels (n,), averaged over the samples (eq. 1)."""

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch.nn.functional as F
from torch import Tensor

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
LossName: TypeAlias = Literal["cross-entropy", "focal"]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean of −log p_y (eq. 1)."""
    return F.cross_entropy(logits, labels)


def focal(logits: Tensor, labels: Tensor, gamma: float = 2.0) -> Tensor:
    """Mean of −(1 − p_y)^γ log p_y (Lin et al. 2017)."""
    log_p = F.log_softmax(logits, dim=1).gather(1, labels[:, None]).squeeze(1)
    return -((1 - log_p.exp()) ** gamma * log_p).mean()


LOSSES: dict[LossName, Loss] = {"cross-entropy": cross_entropy, "focal": focal}
