"""Krylov: the growing orthonormal basis of Algorithm 1 with the operator's projection onto it; thick restart."""

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hessian_surgery.curvature.basis import Basis, inner, length
from hessian_surgery.curvature.memory import Watch
from hessian_surgery.curvature.operators import Operator
from hessian_surgery.errors import InputError
from hessian_surgery.model.parameters import ParameterSpace
from hessian_surgery.types import Array


@dataclass(frozen=True)
class Ritz:
    """What a subspace of dimension m says about the operator.

    Attributes:
        values: Ritz values (m,), in descending order.
        rows: their vectors in the basis (m, m), one per row.
        errors: ‖H q − θ q‖ of each (m,).
        dimension: p.
    """

    values: Array
    rows: Array
    errors: Array
    dimension: int

    def moving(self, moved: Array) -> Array:
        """‖(H − θ) δ‖ (k,) for leading vectors that rounding moves by a random δ of given length (k,)."""
        mean_square = float(np.sum(self.values**2)) / self.dimension
        return moved * np.sqrt(self.values[: len(moved)] ** 2 + mean_square)

    @property
    def residuals(self) -> Array:
        """`errors` relative to |θ| (m,)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.nan_to_num(self.errors / np.abs(self.values), nan=0.0, posinf=np.inf)


class Krylov:
    """An orthonormal basis Q, the projection T = Q H Qᵀ, and the vector that comes next.

    H qⱼ = Σ_i T_ij q_i + (for the last j) β q_next, to rounding. T is kept whole in float64: tridiagonal until
    the first restart, an arrowhead and a tridiagonal part afterwards.

    Args:
        operator: symmetric.
        basis: empty, with room for the vectors.
        start: the first vector (p,); it need not be of unit length.
        draw: for fresh directions when the Krylov space is exhausted.
        watch: of the memory held; what a product takes while it runs is left out.
    """

    def __init__(
        self, operator: Operator, basis: Basis, start: Tensor, draw: torch.Generator, watch: Watch | None = None
    ) -> None:
        self._operator, self._draw, self._watch = operator, draw, watch
        self.basis = basis
        self._projected = np.zeros((basis.storage.rows, basis.storage.rows))
        # ‖error‖ that rounding of stored vectors leaves in each column of H Q = Q T.
        self._rounding = np.zeros(basis.storage.rows)
        self._next = start / length(start)
        self._previous: Tensor | None = None
        self._beta = 0.0
        self._scale = 0.0
        self.products = 0
        # Products since the Krylov space was last exhausted: right after that the pairs so far are exact, but others
        # may be missing.
        self.since_exhausted = 0

    def __len__(self) -> int:
        return len(self.basis)

    @property
    def full(self) -> bool:
        """Whether there is no room for another vector."""
        return len(self.basis) == self.basis.storage.rows

    @property
    def exhausted(self) -> bool:
        """Whether the last product lay in the basis."""
        return self._beta == 0.0

    def extend(self) -> None:
        """One step of Algorithm 1: store the next vector, multiply it, make the product orthogonal to the basis."""
        j, wanted = len(self.basis), self._next
        vector = self.basis.append(wanted)
        if j > 0 and vector is not wanted:
            self._rounding[j - 1] = np.hypot(self._rounding[j - 1], self._beta * length(wanted - vector))
        with self._watch.excluded() if self._watch else nullcontext():
            product = self._operator(vector)
        self.products += 1
        column = np.zeros(j + 1)
        column[j] = inner(vector, product)
        product.add_(vector, alpha=-column[j])
        if self._previous is not None:
            column[j - 1] = self._beta
            product.add_(self._previous, alpha=-self._beta)
        beta = self._orthogonalize(product, column)
        size = float(np.hypot(np.linalg.norm(column), beta))  # of the product, before anything was taken away
        if not np.isfinite(size):
            raise InputError("training_data: a Hessian product is not finite; check the weights and the images for NaN")
        self._scale = max(self._scale, size)
        self._previous = vector
        self._projected[: j + 1, j] = self._projected[j, : j + 1] = column
        self._follow(product, beta)

    def ritz(self) -> Ritz:
        """Ritz pairs of the present basis."""
        m = len(self.basis)
        values, columns = np.linalg.eigh(self._projected[:m, :m])
        values, rows = values[::-1].copy(), columns.T[::-1].copy()
        # Rounding errors of different vectors point in unrelated directions, so that their squares add.
        spread = rows**2 @ self._rounding[:m] ** 2
        arithmetic = torch.finfo(self.basis.dtype).eps * self._scale
        errors = np.sqrt((self._beta * rows[:, -1]) ** 2 + spread + arithmetic**2)
        return Ritz(values, rows, errors, self._operator.space.dimension)

    def restart(self, keep: int) -> None:
        """Thick restart: go on with the leading Ritz vectors and the next vector as the basis (Wu and Simon 2000)."""
        ritz = self.ritz()
        moved = self.basis.rotate(torch.from_numpy(ritz.rows[:keep])).numpy()
        inherited = np.sqrt(ritz.rows[:keep] ** 2 @ self._rounding[: ritz.rows.shape[1]] ** 2)
        self._previous = None
        self._rounding[:] = 0
        self._rounding[:keep] = np.hypot(inherited, ritz.moving(moved))
        self._projected[:] = 0
        self._projected[range(keep), range(keep)] = ritz.values[:keep]

    def _orthogonalize(self, product: Tensor, column: Array) -> float:
        """Take the basis out of a product in place, adding the coefficients to `column`.

        A pass leaves what rounding leaves of what it takes away, so it is repeated until it takes less than it leaves.
        The last two vectors are out already, and between restarts the rest is rounding: one pass will do.

        Returns:
            The length of what is left.
        """
        left = 0.0
        for _ in range(3):
            taken = self.basis.project(product)
            self.basis.subtract(taken, product)
            column += taken.cpu().numpy()
            left = length(product)
            if left >= float(taken.norm()):
                break
        return left

    def _follow(self, remainder: Tensor, beta: float) -> None:
        """Set β and the next vector from what is left of a product, which is β long."""
        # Where what is left is rounding, the Krylov space is exhausted. Go on from a fresh direction, which finds what
        # the first start vector had no part of; β = 0 keeps T exact. The threshold is tight: in float32 a bulk lies
        # only four or five decades below the spikes.
        if beta > 20 * torch.finfo(remainder.dtype).eps * self._scale:
            self.since_exhausted += 1
            self._beta, self._next = beta, remainder.div_(beta)
            return
        self.since_exhausted, self._beta = 0, 0.0
        if len(self.basis) < self._operator.space.dimension:
            fresh = gaussian(self._operator.space, self._draw)
            left = self._orthogonalize(fresh, np.zeros(len(self.basis)))
            self._next = fresh / left


def gaussian(space: ParameterSpace, draw: torch.Generator) -> Tensor:
    """A Gaussian vector (p,), the same on every device."""
    return torch.randn(space.dimension, generator=draw, dtype=space.dtype).to(space.device)


def positive(values: Array, dtype: torch.dtype) -> NDArray[np.bool_]:
    """Which of a spectrum's values are positive beyond rounding."""
    return values > 10 * torch.finfo(dtype).eps * np.abs(values).max(initial=0.0)
