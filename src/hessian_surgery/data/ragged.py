"""Ragged: samples that differ in length, such as texts; a batch is padded when it is made."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hessian_surgery.data import batches
from hessian_surgery.data.batches import Inputs


@dataclass(frozen=True)
class Ragged:
    """Samples that are kept one by one.

    Attributes:
        read: function from a position to the sample there, as its source has it.
        collate: function from n samples to their inputs (n, …), padded to the longest of them.
    """

    read: Callable[[int], Any]
    collate: Callable[[list[Any]], Inputs]

    def fetch(self, positions: Tensor) -> Inputs:
        """The inputs of the samples at `positions` (n,)."""
        return self.collate([self.read(i) for i in positions.tolist()])

    def subset(self, positions: Tensor) -> "Ragged":
        """The samples at `positions` (n,), in that order."""
        chosen = positions.tolist()
        return replace(self, read=lambda i: self.read(chosen[i]))

    def resident(self, samples: Sequence[Any], device: torch.device) -> "Inputs | Ragged":
        """All samples, which have been read: stacked on `device` if all are of one shape.

        Others are kept as they are, and their batches go to `device`.

        Args:
            samples: what `read` gave for each position, at least one.
            device: where inputs are wanted.
        """
        alone = [self.collate([sample]) for sample in samples]
        if len({tuple(tensor.shape for tensor in batches.tensors(one)) for one in alone}) == 1:
            return batches.move(batches.join(alone), device)
        return Ragged(samples.__getitem__, lambda chosen: batches.move(self.collate(chosen), device))


def join_ragged(first: Ragged, count: int, second: Ragged) -> Ragged:
    """Two sets after one another; the first has `count` samples and makes the batches."""
    return replace(first, read=lambda i: first.read(i) if i < count else second.read(i - count))
