"""Lanczos (Algorithm 1): the leading eigenpairs, "spikes", of an operator known by its products."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from hessian_surgery.classifier import deterministic_kernels
from hessian_surgery.curvature.basis import Basis
from hessian_surgery.curvature.operators import Operator
from hessian_surgery.errors import InputError
from hessian_surgery.metrics import Array
from hessian_surgery.parameters import ParameterSpace
from hessian_surgery.seeding import generator

Progress: TypeAlias = Callable[[int, int], None]
TOLERANCE = 1e-2


@dataclass(frozen=True)
class Spectrum:
    """The K algebraically largest positive Ritz pairs of an operator, in descending order.

    Attributes:
        eigenvalues: λ (K,) float64.
        vectors: unit eigenvectors q (K, p), one per row.
        residuals: ‖H q − λ q‖ / |λ| (K,), read off the recurrence: β_m |u_m,i| / |λ_i|.
        tolerance: the relative residual at which a pair counts as converged.
        steps: Lanczos steps taken, which is the number of products.
        space: the weights that the vectors are directions of.
    """

    eigenvalues: Array
    vectors: Tensor
    residuals: Array
    tolerance: float
    steps: int
    space: ParameterSpace

    def __len__(self) -> int:
        return len(self.eigenvalues)

    @property
    def converged(self) -> NDArray[np.bool_]:
        """Which pairs meet the tolerance (K,)."""
        return self.residuals <= self.tolerance


@dataclass
class _Recurrence:
    """The tridiagonal matrix T_m (diagonal α, off-diagonal β; the last β is the one that leaves T_m).

    `since_exhausted` counts the steps since the Krylov space was last exhausted: right after that the pairs so far are
    exact, but others may be missing.
    """

    basis: Basis
    alphas: list[float] = field(default_factory=list)
    betas: list[float] = field(default_factory=list)
    since_exhausted: int = 0

    def ritz(self) -> tuple[Array, Array, Array]:
        """Ritz values (m,) in descending order, their vectors in the basis (m, m) as rows, relative residuals."""
        values, columns = eigh_tridiagonal(np.array(self.alphas), np.array(self.betas[:-1]))
        values, rows = values[::-1].copy(), columns.T[::-1].copy()
        with np.errstate(divide="ignore", invalid="ignore"):
            residuals = self.betas[-1] * np.abs(rows[:, -1]) / np.abs(values)
        return values, rows, np.nan_to_num(residuals, nan=0.0, posinf=np.inf)


def lanczos(
    operator: Operator,
    k: int,
    *,
    steps: int | None = None,
    tolerance: float = TOLERANCE,
    max_steps: int | None = None,
    start: Tensor | None = None,
    seed: int = 0,
    iteration: int = 0,
    progress: Progress | None = None,
) -> Spectrum:
    """The k largest positive eigenpairs.

    Args:
        operator: symmetric, with a `space`.
        k: how many pairs are wanted; fewer come back where fewer are positive.
        steps: take exactly this many steps (the paper's m); by default go on until the k pairs have converged.
        tolerance: relative residual at which a pair counts as converged.
        max_steps: where to give up on convergence; by default 10 k + 50.
        start: starting vector (p,); by default Gaussian, drawn from (seed, iteration).
        seed: see `start`.
        iteration: see `start`.
        progress: called with (steps taken, steps at most) after each step.
    """
    dimension = operator.space.dimension
    limit = min(steps or max_steps or 10 * k + 50, dimension)
    if not 1 <= k <= limit:
        what = f"only {limit} Lanczos steps" if limit < dimension else f"only {dimension} weights"
        raise InputError(f"spikes: got {k}, but there are {what}; ask for 1 to {limit}, or allow more steps")
    draw = generator(seed, "lanczos", iteration)
    space = operator.space
    recurrence = _Recurrence(Basis(dimension, space.dtype, space.device, expected=limit))
    vector = _gaussian(space, draw) if start is None else start.to(space.device, space.dtype)
    vector = vector / vector.norm()
    with deterministic_kernels(exact=True):
        for step in range(1, limit + 1):
            vector = _extend(recurrence, operator, vector, draw)
            if progress is not None:
                progress(step, limit)
            settled = steps is None and recurrence.since_exhausted >= k
            if settled and (recurrence.ritz()[2][:k] <= tolerance).all():
                break
        return _spikes(recurrence, k, tolerance, space)


def _extend(recurrence: _Recurrence, operator: Operator, vector: Tensor, draw: torch.Generator) -> Tensor:
    """One step: store q_j, append α_j and β_j, return q_{j+1}."""
    basis, betas = recurrence.basis, recurrence.betas
    basis.append(vector)
    product = operator(vector)
    if not torch.isfinite(product).all():
        raise InputError("hessian_data: a Hessian product is not finite; check the weights and the images for NaN")
    recurrence.alphas.append(float(vector @ product))
    scale = float(product.norm())
    remainder = basis.remove_from(product)
    beta = float(remainder.norm())
    # Where what is left after two passes is rounding, the Krylov space is exhausted. Go on from a fresh direction,
    # which finds what the first start vector had no part of; β = 0 keeps T_m exact. The threshold is tight: in float32
    # a bulk lies only four or five decades below the spikes.
    if beta > 20 * torch.finfo(vector.dtype).eps * max(scale, max(map(abs, recurrence.alphas))):
        recurrence.since_exhausted += 1
        betas.append(beta)
        return remainder / beta
    recurrence.since_exhausted = 0
    betas.append(0.0)
    if len(basis) == basis.dimension:
        return remainder
    fresh = basis.remove_from(_gaussian(operator.space, draw))
    return fresh / fresh.norm()


def _spikes(recurrence: _Recurrence, k: int, tolerance: float, space: ParameterSpace) -> Spectrum:
    values, rows, residuals = recurrence.ritz()
    # An eigenvalue within rounding of zero is not a spike.
    count = int((values[:k] > 10 * torch.finfo(space.dtype).eps * np.abs(values).max()).sum())
    vectors = recurrence.basis.combine(torch.from_numpy(rows[:count]))
    vectors /= vectors.norm(dim=1, keepdim=True)
    return Spectrum(values[:count], vectors, residuals[:count], tolerance, len(recurrence.alphas), space)


def _gaussian(space: ParameterSpace, draw: torch.Generator) -> Tensor:
    return torch.randn(space.dimension, generator=draw, dtype=space.dtype).to(space.device)
