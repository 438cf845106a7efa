"""Krylov: one step of Lanczos (Algorithm 1), the projection of the operator, thick restart."""

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hessian_surgery.curvature.basis import Basis
from hessian_surgery.curvature.memory import Watch
from hessian_surgery.curvature.operators import Operator, VectorSpace, space_of
from hessian_surgery.curvature.slices import Slices
from hessian_surgery.errors import InputError
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
        """‖(H − θ) δ‖ (k,), where rounding moves the k leading vectors by random δ `moved` long."""
        mean_square = float(np.sum(self.values**2)) / self.dimension
        return moved * np.sqrt(self.values[: len(moved)] ** 2 + mean_square)

    @property
    def residuals(self) -> Array:
        """`errors` relative to |θ| (m,)."""
        return relative(self.errors, self.values)


class Krylov:
    """An orthonormal basis Q, the projection T = Q H Qᵀ, and the vector that comes next.

    H qⱼ = Σ_i T_ij q_i + (for the last j) β q_next, up to rounding. T is kept whole in float64. It
    is tridiagonal until the first restart, then an arrowhead and a tridiagonal part.

    Args:
        operator: symmetric.
        basis: empty, with room for the vectors.
        start: the first vector (p,); it need not be of unit length.
        draw: draws a fresh direction each time the Krylov space is exhausted.
        watch: watches the memory held; what a product takes while it runs does not count.
    """

    def __init__(
        self, operator: Operator, basis: Basis, start: Tensor, draw: torch.Generator, watch: Watch | None = None
    ) -> None:
        self.basis = basis
        self._operator = operator
        self._space = space_of(operator)
        self._draw = draw
        self._watch = watch
        self._projected = np.zeros((basis.storage.rows, basis.storage.rows))
        # The ‖error‖ that rounding stored vectors leaves in each column of H Q = Q T.
        self._rounding = np.zeros(basis.storage.rows)
        self._next = start / basis.length(start)
        self._previous: Tensor | None = None
        self._beta = 0.0
        self._scale = 0.0
        self.products = 0
        # Products since the Krylov space was last exhausted. Right after that the pairs found are
        # exact, but others may be missing.
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
        """Take one step: store the next vector, multiply it, take the basis out of the product."""
        j = len(self.basis)
        wanted = self._next
        vector = self.basis.append(wanted)
        if j > 0 and vector is not wanted:
            self._rounding[j - 1] = np.hypot(self._rounding[j - 1], self._beta * self.basis.length(wanted - vector))
        with self._watch.excluded() if self._watch else nullcontext():
            product = self._operator @ vector
        self.products += 1
        column = np.zeros(j + 1)
        column[j] = self.basis.inner(vector, product)
        product.add_(vector, alpha=-column[j])
        if self._previous is not None:
            column[j - 1] = self._beta
            product.add_(self._previous, alpha=-self._beta)
        beta = self._orthogonalize(product, column)
        size = float(np.hypot(np.linalg.norm(column), beta))  # of the whole product
        if not np.isfinite(size):
            raise InputError("training_data: a Hessian product is not finite; check the weights and the images for NaN")
        self._scale = max(self._scale, size)
        self._previous = vector
        self._projected[: j + 1, j] = self._projected[j, : j + 1] = column
        self._follow(product, beta)

    def ritz(self) -> Ritz:
        """The Ritz pairs of the present basis."""
        m = len(self.basis)
        ascending, columns = np.linalg.eigh(self._projected[:m, :m])
        values = ascending[::-1].copy()
        rows = columns.T[::-1].copy()
        # Rounding errors of different vectors point in unrelated directions: their squares add.
        spread = rows**2 @ self._rounding[:m] ** 2
        arithmetic = torch.finfo(self.basis.dtype).eps * self._scale
        errors = np.sqrt((self._beta * rows[:, -1]) ** 2 + spread + arithmetic**2)
        return Ritz(values, rows, errors, self._space.dimension)

    def restart(self, keep: int) -> None:
        """Thick restart (Wu and Simon 2000): make the `keep` leading Ritz vectors the basis."""
        ritz = self.ritz()
        moved = self.basis.rotate(torch.from_numpy(ritz.rows[:keep])).numpy()
        inherited = np.sqrt(ritz.rows[:keep] ** 2 @ self._rounding[: ritz.rows.shape[1]] ** 2)
        self._previous = None
        self._rounding[:] = 0
        self._rounding[:keep] = np.hypot(inherited, ritz.moving(moved))
        self._projected[:] = 0
        self._projected[range(keep), range(keep)] = ritz.values[:keep]

    def _orthogonalize(self, product: Tensor, column: Array) -> float:
        """Take the basis out of a product in place, and add the coefficients to `column`.

        Rounding spoils a pass in proportion to what it takes away. So passes are repeated until one
        takes less than it leaves. Between restarts one is enough: the last two vectors are out
        already, and the other coefficients are rounding.

        Returns:
            The length of what is left.
        """
        left = 0.0
        for _ in range(3):
            taken = self.basis.project(product)
            self.basis.subtract(taken, product)
            column += taken.cpu().numpy()
            left = self.basis.length(product)
            if left >= float(taken.norm()):
                break
        return left

    def _follow(self, remainder: Tensor, beta: float) -> None:
        """Set β and the next vector from the remainder of a product, which has length β."""
        # If the remainder is mere rounding, the Krylov space is exhausted. A fresh direction then
        # finds what the start vector had no part of, and β = 0 keeps T exact. The threshold is
        # tight: in float32 a bulk lies only four or five decades below the spikes.
        if beta > 20 * torch.finfo(remainder.dtype).eps * self._scale:
            self.since_exhausted += 1
            self._beta = beta
            self._next = remainder.div_(beta)
            return
        self.since_exhausted = 0
        self._beta = 0.0
        if len(self.basis) < self._space.dimension:
            fresh = gaussian(self._space, self._draw)
            left = self._orthogonalize(fresh, np.zeros(len(self.basis)))
            self._next = fresh / left


def gaussian(space: VectorSpace, draw: torch.Generator) -> Tensor:
    """A Gaussian vector (p,), the same on every device; of `Slices`, this rank's slice of it."""
    drawn = torch.randn(space.dimension, generator=draw, dtype=space.dtype)
    return space.own(drawn) if isinstance(space, Slices) else drawn.to(space.device)


def relative(errors: Array, values: Array) -> Array:
    """Errors as shares of |values|: 0 of 0 is 0, more of 0 is infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(errors / np.abs(values), nan=0.0, posinf=np.inf)


def positive(values: Array, dtype: torch.dtype) -> NDArray[np.bool_]:
    """Which of a spectrum's values are positive by more than rounding."""
    return values > 10 * torch.finfo(dtype).eps * np.abs(values).max(initial=0.0)
