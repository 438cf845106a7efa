"""The outputs of each image that can win: its true class, and those with the largest logits."""

import torch
from torch import Tensor

# How many there are at most. The others are too far behind for a small step to matter.
LEADING = 16


def leading_outputs(logits: Tensor, labels: Tensor, count: int = LEADING) -> Tensor:
    """Choose outputs (n, L) by their logits (n, C): the true class first, then the largest.

    L is `count`, or C if that is less.
    """
    others = logits.scatter(1, labels[:, None], -torch.inf)
    largest = others.topk(min(count, logits.shape[1]) - 1, dim=1).indices
    return torch.cat([labels[:, None], largest], dim=1)


def winners(logits: Tensor, outputs: Tensor) -> Tensor:
    """The output (n,) with the largest of the logits (n, L) of outputs (n, L).

    Of equal ones the first output wins, as in an argmax over all logits.
    """
    best = logits.amax(dim=1, keepdim=True)
    beyond = int(torch.iinfo(outputs.dtype).max)
    return outputs.masked_fill(logits < best, beyond).amin(dim=1)
