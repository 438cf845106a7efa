"""Batch norm of feature maps that are down to one position, as rows of features: for GPUs.

cuDNN gives each value of such maps a block of its own. In a ResNet-50 on images of 32×32 pixels,
whose last maps have one position, that was most of a forward pass.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class quick_batch_norm(TorchFunctionMode):
    """A block in which `batch_norm` takes maps (n, C, 1, …, 1) as rows (n, C)."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Reshape what `batch_norm` takes and gives; PyTorch calls this for all its functions."""
        if func is not F.batch_norm or not _has_one_position(args):
            return func(*args, **(kwargs or {}))
        maps, *others = args
        return F.batch_norm(maps.flatten(1), *others, **(kwargs or {})).view(maps.shape)


def _has_one_position(arguments: tuple[Any, ...]) -> bool:
    """Whether the first argument holds maps of one position."""
    maps = arguments[0] if arguments else None
    return isinstance(maps, Tensor) and maps.ndim > 2 and maps.shape[2:].numel() == 1
