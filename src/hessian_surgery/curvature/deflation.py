"""Deflation: an operator without the part of it that lies along known directions."""

from torch import Tensor

from hessian_surgery.curvature.basis import project, subtract
from hessian_surgery.curvature.operators import Operator, SymmetricOperator, space_of


class Deflated(SymmetricOperator):
    """(I − QᵀQ) H (I − QᵀQ) (eq. 9): symmetric, zero along the rows of Q.

    Where the rows of Q are eigenvectors of H, the other eigenpairs are those of H.

    Args:
        operator: H.
        vectors: Q (k, p), orthonormal rows, on any device in any precision.

    Example:
        >>> diagonal = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
        >>> hs.Deflated(diagonal, torch.tensor([[1.0, 0.0, 0.0]])) @ torch.ones(3)
        tensor([0., 2., 1.])
    """

    def __init__(self, operator: Operator, vectors: Tensor) -> None:
        self.space = space_of(operator)
        self.operator = operator
        self.vectors = vectors

    def _multiply(self, vector: Tensor) -> Tensor:
        return self.without(self.operator @ self.without(vector.clone()))

    def without(self, vector: Tensor) -> Tensor:
        """Take the rows of Q out of a vector (p,), in place."""
        subtract(self.vectors, project(self.vectors, vector), vector)
        return vector
