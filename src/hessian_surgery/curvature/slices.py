"""Slices: vectors spread over ranks, and operators that multiply them with one exchange each way.

A reduce-scatter and an all-gather are the two halves of one all-reduce: together they move as many
bytes. In between each rank works on its own slice, so a basis takes 1/size of the memory.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from hessian_surgery.curvature.basis import Basis, Storage
from hessian_surgery.curvature.batch_operator import BatchOperator
from hessian_surgery.curvature.operators import Operator, SymmetricOperator, VectorSpace, space_of
from hessian_surgery.distributed import join_slices, total, total_slice
from hessian_surgery.ranks import Ranks, present


@dataclass(frozen=True)
class Slices:
    """Vectors (p,) of which every rank holds a slice (`width`,), filled up with zeros at the end.

    Attributes:
        whole: the space of the whole vectors.
        ranks: who holds the slices.
    """

    whole: VectorSpace
    ranks: Ranks

    @property
    def dimension(self) -> int:
        """p, the length of a whole vector."""
        return self.whole.dimension

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of vectors and of arithmetic with them."""
        return self.whole.dtype

    @property
    def device(self) -> torch.device:
        """Where vectors are."""
        return self.whole.device

    @property
    def width(self) -> int:
        """The length of a slice."""
        return width(self.whole)

    def own(self, vector: Tensor, fill: float = 0.0) -> Tensor:
        """This rank's slice of a whole vector (p,), or of rows (k, p): a copy, on the device."""
        first = self.ranks.rank * self.width
        found = vector[..., first : first + self.width].to(self.device)
        return pad(found, (0, self.width - found.shape[-1]), value=fill).clone()

    def join(self, part: Tensor) -> Tensor:
        """The whole vector (p,), from the slice of each rank."""
        return join_slices(part)[: self.dimension]

    def add(self, share: Tensor) -> Tensor:
        """This rank's slice of the sum of all ranks' vectors (p,)."""
        return total_slice(pad(share, (0, self.width * self.ranks.size - self.dimension)))


class Sliced(SymmetricOperator):
    """An operator that takes this rank's slice of a vector, and gives its slice of the product.

    Args:
        operator: H, for whole vectors; the same on every rank.
        slices: how vectors are spread.
    """

    space: Slices

    def __init__(self, operator: Operator, slices: Slices) -> None:
        self.operator = operator
        self.space = slices

    def __matmul__(self, other: Tensor) -> Tensor:
        """The slice (`width`,) of H v, from the slice of v: a new tensor."""
        return self._multiply(other)

    def _multiply(self, vector: Tensor) -> Tensor:
        whole = self.space.join(vector)
        if isinstance(self.operator, BatchOperator):
            return self.space.add(self.operator.share(whole))
        return self.space.own(self.operator @ whole)


def width(space: VectorSpace) -> int:
    """How much of a vector (p,) each rank holds: all of it if there is one rank."""
    return -(-space.dimension // present().size)


def slices_of(space: VectorSpace) -> Slices | None:
    """How vectors are spread over the ranks; None if this process is alone."""
    return Slices(space, present()) if present().joined else None


def sliced(operator: Operator) -> Operator:
    """The operator for slices; itself if this process is alone."""
    slices = slices_of(space_of(operator))
    return operator if slices is None else Sliced(operator, slices)


def make_basis(space: VectorSpace, storage: Storage) -> Basis:
    """An empty basis for vectors of a space, or for this rank's slices of them."""
    if isinstance(space, Slices):
        return Basis(space.width, space.dtype, space.device, storage, total)
    return Basis(space.dimension, space.dtype, space.device, storage)
