"""Deflation: an operator from which known directions have been taken out."""

from dataclasses import dataclass

from torch import Tensor

from hessian_surgery.curvature.basis import project, subtract
from hessian_surgery.curvature.operators import Operator
from hessian_surgery.model.parameters import ParameterSpace


@dataclass(frozen=True)
class Deflated:
    """(I − QᵀQ) H (I − QᵀQ) (eq. 9): symmetric, zero along the rows of Q, H elsewhere.

    Attributes:
        operator: H.
        vectors: Q (k, p), orthonormal rows, kept anywhere in any precision.
    """

    operator: Operator
    vectors: Tensor

    @property
    def space(self) -> ParameterSpace:
        """The weights that the vectors are directions of."""
        return self.operator.space

    def __call__(self, vector: Tensor) -> Tensor:
        """The product with a vector (p,)."""
        return self._without(self.operator(self._without(vector.clone())))

    def _without(self, vector: Tensor) -> Tensor:
        subtract(self.vectors, project(self.vectors, vector), vector)
        return vector
