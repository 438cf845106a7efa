"""Lanczos (Algorithm 1): the leading eigenpairs, "spikes", of an operator known by its products."""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hessian_surgery.curvature.basis import Basis, Storage
from hessian_surgery.curvature.krylov import Krylov, gaussian, positive
from hessian_surgery.curvature.memory import Watch, choose_storage
from hessian_surgery.curvature.operators import Operator
from hessian_surgery.errors import InputError
from hessian_surgery.model.classifier import deterministic_kernels
from hessian_surgery.model.parameters import ParameterSpace
from hessian_surgery.seeding import generator
from hessian_surgery.types import Array, Progress

TOLERANCE = 1e-2


@dataclass(frozen=True)
class Spectrum:
    """The K algebraically largest positive Ritz pairs of an operator, in descending order.

    Attributes:
        eigenvalues: λ (K,) float64.
        vectors: unit eigenvectors q (K, p), one per row, kept as `storage` says: `vector(i)` gives one to work with.
        residuals: ‖H q − λ q‖ / |λ| (K,), read off the recurrence, the rounding of stored vectors included.
        tolerance: the relative residual at which a pair counts as converged.
        steps: Lanczos steps taken, which is the number of products.
        space: the weights that the vectors are directions of.
        storage: where and how the basis was kept.
        basis_bytes: what it took there.
        peak_bytes: the most memory that the run held at once beyond what was held before it (the model, the batch and
            its graph) and what a product takes while it runs, on host and device together.
    """

    eigenvalues: Array
    vectors: Tensor
    residuals: Array
    tolerance: float
    steps: int
    space: ParameterSpace
    storage: Storage = field(default=Storage(rows=0))
    basis_bytes: int = 0
    peak_bytes: int = 0

    def __len__(self) -> int:
        return len(self.eigenvalues)

    @property
    def converged(self) -> NDArray[np.bool_]:
        """Which pairs meet the tolerance (K,)."""
        return self.residuals <= self.tolerance

    def vector(self, i: int) -> Tensor:
        """Eigenvector i (p,) on the weights' device, in the arithmetic's dtype."""
        return self.vectors[i].to(self.space.device, self.space.dtype)

    def combine(self, coefficients: Array) -> Tensor:
        """δθ = Σ_i α_i q_i, (p,)."""
        total = torch.zeros(self.space.dimension, dtype=self.space.dtype, device=self.space.device)
        for i, coefficient in enumerate(coefficients):
            total.add_(self.vector(i), alpha=float(coefficient))
        return total


def lanczos(
    operator: Operator,
    k: int,
    *,
    steps: int | None = None,
    tolerance: float = TOLERANCE,
    max_steps: int | None = None,
    storage: Storage | None = None,
    start: Tensor | None = None,
    seed: int = 0,
    iteration: int = 0,
    progress: Progress | None = None,
) -> Spectrum:
    """The k largest positive eigenpairs, by Lanczos with full reorthogonalization and thick restart.

    Args:
        operator: symmetric, with a `space`.
        k: how many pairs are wanted; fewer come back where fewer are positive.
        steps: take exactly this many steps (the paper's m); by default go on until the k pairs have converged.
        tolerance: relative residual at which a pair counts as converged.
        max_steps: where to give up on convergence; by default 10 k + 50.
        storage: where and how the basis is kept; by default what the free memory allows (`choose_storage`).
        start: starting vector (p,); by default Gaussian, drawn from (seed, iteration).
        seed: see `start`.
        iteration: see `start`.
        progress: called with (steps taken, steps at most) after each step.
    """
    space = operator.space
    limit = min(steps or max_steps or 10 * k + 50, space.dimension)
    _check(k, limit, steps, tolerance, storage, space.dimension)
    if storage is None:
        storage = choose_storage(space, k, steps=steps, tolerance=tolerance)
    watch, draw = Watch(space.device), generator(seed, "lanczos", iteration)
    first = gaussian(space, draw) if start is None else start.to(space.device, space.dtype)
    basis = Basis(space.dimension, space.dtype, space.device, storage)
    krylov = Krylov(operator, basis, first, draw, watch)
    aim = max(0.0, tolerance**2 - basis.rounding**2) ** 0.5  # the pairs are rounded once more at the end
    with deterministic_kernels(exact=True):
        for step in range(1, limit + 1):
            if krylov.full:
                krylov.restart(_keep(k, storage.rows))
            krylov.extend()
            if progress is not None:
                progress(step, limit)
            settled = steps is None and krylov.since_exhausted >= k
            if settled and (krylov.ritz().residuals[:k] <= aim).all():
                break
        return _spikes(krylov, k, tolerance, space, watch)


def _check(k: int, limit: int, steps: int | None, tolerance: float, storage: Storage | None, dimension: int) -> None:
    if not 1 <= k <= limit:
        what = f"only {limit} Lanczos steps" if limit < dimension else f"only {dimension} weights"
        raise InputError(f"spikes: got {k}, but there are {what}; ask for 1 to {limit}, or allow more steps")
    if not 0 < tolerance < 1:
        raise InputError(f"tolerance: got {tolerance:g}; it must be between 0 and 1")
    needed = min(steps or k + 3, dimension)
    if storage is not None and storage.rows < needed:
        raise InputError(f"storage: room for {storage.rows} vectors, where {needed} or more are needed")


def _keep(k: int, rows: int) -> int:
    """How many Ritz vectors a restart keeps: those wanted, and a third of the room beyond them, which speeds it up."""
    return min(k + (rows - k) // 3, rows - 2)


def _spikes(krylov: Krylov, k: int, tolerance: float, space: ParameterSpace, watch: Watch) -> Spectrum:
    ritz = krylov.ritz()
    # An eigenvalue within rounding of zero is not a spike.
    count = int(positive(ritz.values, space.dtype)[:k].sum())
    basis = krylov.basis
    held = basis.nbytes
    moved = basis.rotate(torch.from_numpy(ritz.rows[:count]), last=True).numpy()
    return Spectrum(
        eigenvalues=ritz.values[:count],
        vectors=basis.vectors(),
        residuals=np.hypot(ritz.residuals[:count], ritz.moving(moved) / ritz.values[:count]),
        tolerance=tolerance,
        steps=krylov.products,
        space=space,
        storage=basis.storage,
        basis_bytes=held,
        peak_bytes=watch.peak(),
    )
