"""The images that directions are tried on: on a CPU, those whose answers are nearest to a change.

Answers to the others are so certain that they hardly count in soft accuracies, and that few of them
change with a small step. A step that is taken is measured on all images.
"""

import math

import torch
from torch import Tensor

from hessian_surgery.evidence.accuracies import answer_gaps

# Their share of all images; and how many there are at least, if there are as many images.
SHARE = 0.4
FEWEST = 2000


def moving_images(logits: Tensor) -> Tensor | None:
    """Positions (m,) of these images among all with logits (n, C); None if these are all."""
    count = count_moving(len(logits), logits.device)
    if count == len(logits):
        return None
    return answer_gaps(logits).topk(count, largest=False).indices.sort().values


def count_moving(images: int, device: torch.device) -> int:
    """How many of so many images these are: `SHARE` of them, or `FEWEST` if that is more.

    On a GPU, whose passes are short, they are all.
    """
    return images if device.type == "cuda" else max(math.ceil(SHARE * images), min(images, FEWEST))
