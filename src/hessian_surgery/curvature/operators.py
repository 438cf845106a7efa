"""What an operator is: a symmetric p × p matrix that is known by its products with vectors."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator
from torch import Tensor

from hessian_surgery.errors import InputError

Product: TypeAlias = Callable[[Tensor], Tensor]


class VectorSpace(Protocol):
    """What vectors (p,) have in common. The weights of a model (`ParameterSpace`) are one."""

    @property
    def dimension(self) -> int:
        """p, the length of a vector."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of vectors and of arithmetic with them."""

    @property
    def device(self) -> torch.device:
        """Where vectors are."""


@dataclass(frozen=True)
class PlainSpace:
    """A `VectorSpace` that belongs to no model."""

    dimension: int
    dtype: torch.dtype
    device: torch.device


@runtime_checkable
class Operator(Protocol):
    """A symmetric p × p matrix H that vectors can be multiplied with. A dense tensor is one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(p, p)."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of vectors and products."""

    @property
    def device(self) -> torch.device:
        """Where vectors and products are."""

    def __matmul__(self, other: Tensor) -> Tensor:
        """H v for a vector v (p,): a new tensor, which the caller may change."""


class SymmetricOperator(ABC):
    """The base of this package's operators.

    Attributes:
        space: the vectors that it multiplies; a `ParameterSpace` if they are directions of weights.
    """

    space: VectorSpace

    @property
    def shape(self) -> tuple[int, int]:
        """(p, p)."""
        return self.space.dimension, self.space.dimension

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of vectors and products."""
        return self.space.dtype

    @property
    def device(self) -> torch.device:
        """Where vectors and products are."""
        return self.space.device

    def __matmul__(self, other: Tensor) -> Tensor:
        """H v for a vector v (p,), or H V for columns V (p, k), one product each: a new tensor."""
        dimension = self.space.dimension
        if other.ndim not in (1, 2) or len(other) != dimension:
            raise InputError(f"H @ v: got v of shape {tuple(other.shape)}; give ({dimension},) or ({dimension}, k)")
        if other.ndim == 2:
            return torch.stack([self._multiply(column) for column in other.T.contiguous()], dim=1)
        return self._multiply(other)

    def to_scipy(self) -> LinearOperator:
        """The same operator for SciPy, such as `scipy.sparse.linalg.eigsh`: NumPy in and out."""
        dtype = torch.empty(0, dtype=self.dtype).numpy().dtype

        def product(vector: NDArray[Any]) -> NDArray[Any]:
            own = np.array(vector, dtype=dtype).reshape(-1)  # a copy, since PyTorch may write to it
            return (self @ torch.from_numpy(own).to(self.device)).cpu().numpy()

        return LinearOperator(self.shape, matvec=product, rmatvec=product, dtype=dtype)

    @abstractmethod
    def _multiply(self, vector: Tensor) -> Tensor:
        """H v for a vector v (p,): a new tensor, which the caller may change."""


class FunctionOperator(SymmetricOperator):
    """The symmetric matrix H whose products a plain function gives.

    Args:
        function: v (p,) → H v (p,).
        example: any vector (p,); it sets p, the dtype and the device.

    Example:
        >>> twice = hs.FunctionOperator(lambda vector: 2 * vector, torch.zeros(3))
        >>> twice @ torch.ones(3)
        tensor([2., 2., 2.])
    """

    def __init__(self, function: Product, example: Tensor) -> None:
        self.space = PlainSpace(example.numel(), example.dtype, example.device)
        self._function = function

    def _multiply(self, vector: Tensor) -> Tensor:
        # A copy, since the function may return a tensor that it keeps, or the vector itself.
        return self._function(vector).detach().to(self.device, self.dtype, copy=True)


def as_operator(given: Operator | Product, example: Tensor | None) -> Operator:
    """The operator itself, or the one that a plain function stands for (see `FunctionOperator`).

    Raises:
        InputError: it is no square matrix, or a plain function comes without an example.
    """
    if isinstance(given, Operator):
        if len(given.shape) != 2 or given.shape[0] != given.shape[1]:
            raise InputError(f"operator: got shape {tuple(given.shape)}; it must be (p, p)")
        return given
    if example is None:
        raise InputError("start: got None; give a vector (p,) if the operator is a plain function")
    return FunctionOperator(given, example)


def space_of(operator: Operator) -> VectorSpace:
    """The vectors that an operator multiplies; a model's weights if the operator knows them."""
    if isinstance(operator, SymmetricOperator):
        return operator.space
    return PlainSpace(operator.shape[0], operator.dtype, operator.device)
