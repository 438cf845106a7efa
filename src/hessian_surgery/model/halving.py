"""Batches that do not fit in memory: halved, and halved again, until they do."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from hessian_surgery.data import batches


def in_parts(
    function: Callable[..., Tensor],
    join: Callable[[list[Tensor]], Tensor],
    plain: Callable[..., Tensor] | None = None,
) -> Callable[..., Tensor]:
    """The same function of a batch, by parts of it from the first batch on that does not fit.

    Args:
        function: a function of one batch: inputs, and tensors with an entry for each sample.
        join: makes the result for a batch from those of its parts.
        plain: the same function for parts, if `function` is made for batches of one size.
    """
    most: int | None = None  # samples in a part; None as long as every batch has fitted

    def call(*batch: Any) -> Tensor:
        nonlocal most
        count = len(batches.tensors(batch[0])[0])
        while True:
            try:
                if most is None:
                    return function(*batch)
                return join([(plain or function)(*part) for part in _split(batch, count, most)])
            except torch.OutOfMemoryError:
                if min(count, most or count) <= 1:
                    raise
            # Not in the handler, where the error still holds what did not fit.
            most = math.ceil(min(count, most or count) / 2)
            release_memory()

    return call


def release_memory() -> None:
    """Give back what a pass that did not fit has left in a GPU's cache."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _split(batch: tuple[Any, ...], count: int, size: int) -> Iterator[tuple[Any, ...]]:
    """Parts of a batch of `count` samples, at most `size` of them in each."""
    for start in range(0, count, size):
        end = min(start + size, count)
        yield tuple(batches.map_tensors(lambda tensor: tensor[start:end], own) for own in batch)  # noqa: B023
