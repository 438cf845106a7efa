"""Lanczos (the paper's Algorithm 1): the leading eigenpairs, or "spikes", of an operator."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hessian_surgery.curvature.basis import Storage, project
from hessian_surgery.curvature.krylov import Krylov, gaussian, positive, relative
from hessian_surgery.curvature.memory import Watch
from hessian_surgery.curvature.memory_plan import choose_storage
from hessian_surgery.curvature.operators import Operator, Product, VectorSpace, as_operator, space_of
from hessian_surgery.curvature.slices import Slices, make_basis, sliced, slices_of
from hessian_surgery.distributed import total
from hessian_surgery.errors import InputError, require
from hessian_surgery.model.classifier import deterministic_kernels
from hessian_surgery.model.parameters import ParameterSpace
from hessian_surgery.plain_modes import in_plain_modes
from hessian_surgery.seeding import generator
from hessian_surgery.short_repr import short_repr
from hessian_surgery.types import Array, Progress

TOLERANCE = 1e-2
# Lanczos steps per spike until convergence: 2 to 3 on ResNet-50 and the digits net.
STEPS_PER_SPIKE = 3
# Which Ritz pairs count as spikes: those above zero, or as many as are asked for.
Signs: TypeAlias = Literal["positive", "all"]


@dataclass(frozen=True)
class Spectrum:
    """The K largest Ritz pairs of an operator, in descending order; positive ones unless asked.

    Attributes:
        eigenvalues: λ (K,) float64.
        vectors: unit eigenvectors q (K, p), one per row, stored as `storage` says; `vector(i)`
            returns one on the operator's device, in its dtype. Where ranks share the work, each
            holds a slice (K, ⌈p / ranks⌉) of them.
        residuals: ‖H q − λ q‖ / |λ| (K,), computed from the Lanczos recurrence. They include the
            error of rounding the stored vectors.
        tolerance: the relative residual at which a pair counts as converged.
        steps: Lanczos steps taken; each takes one product of the operator with a vector.
        space: the vectors' length, dtype and device; for a model, its `weights`.
        storage: where and how the basis was kept.
        basis_bytes: the bytes that the basis took there.
        peak_bytes: the most memory that the run held at once, on host and device together. This
            leaves out what was held before the run (the model, the batch and its graph), and what
            a product needs while it is computed.
        slices: how `vectors` are spread over ranks; None if they are whole.

    Example:
        >>> spectrum = hs.lanczos(torch.diag(torch.tensor([3.0, 2.0, 1.0])), k=1)
        >>> spectrum.eigenvalues.round(3), spectrum.vectors.shape
        (array([3.]), torch.Size([1, 3]))
    """

    eigenvalues: Array
    vectors: Tensor
    residuals: Array
    tolerance: float
    steps: int
    space: VectorSpace
    storage: Storage = field(default=Storage(rows=0))
    basis_bytes: int = 0
    peak_bytes: int = 0
    slices: Slices | None = None

    __repr__ = short_repr

    def __len__(self) -> int:
        return len(self.eigenvalues)

    @property
    def converged(self) -> NDArray[np.bool_]:
        """Which pairs meet the tolerance (K,)."""
        return self.residuals <= self.tolerance

    @property
    def weights(self) -> ParameterSpace:
        """The model's weights: each vector is a direction in their space.

        Raises:
            InputError: the operator does not belong to a model.
        """
        if not isinstance(self.space, ParameterSpace):
            raise InputError("spectrum: it belongs to no model's weights; take one of a Hessian or GaussNewton")
        return self.space

    def vector(self, i: int) -> Tensor:
        """Eigenvector i (p,) on the operator's device, in its dtype."""
        return self._whole(self.vectors[i].to(self.space.device, self.space.dtype))

    def whole_vectors(self) -> Tensor:
        """All eigenvectors (K, p), stored as `vectors` are."""
        if self.slices is None:
            return self.vectors
        return torch.stack([self.slices.join(row) for row in self.vectors])

    def combine(self, coefficients: Array) -> Tensor:
        """δθ = Σ_i α_i q_i, (p,)."""
        summed = torch.zeros(self.vectors.shape[1], dtype=self.space.dtype, device=self.space.device)
        for coefficient, row in zip(coefficients, self.vectors, strict=False):
            summed.add_(row.to(self.space.device, self.space.dtype), alpha=float(coefficient))
        return self._whole(summed)

    def project(self, columns: Tensor) -> Tensor:
        """Inner products (K, g) of the eigenvectors with columns (p, g), in float64."""
        if self.slices is None:
            return project(self.vectors, columns)
        return total(project(self.vectors, self.slices.own(columns.T).T))

    def _whole(self, part: Tensor) -> Tensor:
        return part if self.slices is None else self.slices.join(part)


@in_plain_modes
def lanczos(
    operator: Operator | Product,
    k: int,
    *,
    steps: int | None = None,
    tolerance: float = TOLERANCE,
    max_steps: int | None = None,
    storage: Storage | None = None,
    start: Tensor | None = None,
    signs: Signs = "positive",
    seed: int = 0,
    iteration: int = 0,
    progress: Progress | None = None,
) -> Spectrum:
    """Find the k largest positive eigenpairs, with full reorthogonalization and thick restarts.

    Args:
        operator: a symmetric operator: a `Hessian` or another `Operator`, a dense tensor (p, p), or
            a plain function v → H v, which needs `start`.
        k: how many pairs are wanted; fewer are returned if fewer are positive and `signs` says so.
        steps: take exactly this many steps (the paper's m); by default until all k have converged.
        tolerance: relative residual at which a pair counts as converged.
        max_steps: steps after which to give up on convergence; by default 10 k + 50.
        storage: where and how to keep the basis; by default the first that fits (`choose_storage`).
        start: start vector (p,); by default Gaussian, drawn from (seed, iteration).
        signs: "positive", or "all" for the k algebraically largest Ritz pairs whatever their sign.
            With as many steps as pairs these are all that there are, as in the paper's table 2.
        seed: see `start`.
        iteration: see `start`.
        progress: called with (steps taken, how many there are likely to be) after each step.

    Example:
        >>> spectrum = hs.lanczos(hs.Hessian(model, hs.hessian_batch(train, 64)), k=2)
        >>> len(spectrum.eigenvalues), bool((spectrum.residuals < 0.01).all())
        (2, True)
    """
    operator = as_operator(operator, start)
    space = space_of(operator)
    limit = min(steps or max_steps or 10 * k + 50, space.dimension)
    _check(k, limit, steps, tolerance, storage, space.dimension)
    require(signs in get_args(Signs), "signs", signs, " or ".join(get_args(Signs)))
    storage = storage or choose_storage(space, k, steps=steps, tolerance=tolerance)
    watch = Watch(space.device)
    draw = generator(seed, "lanczos", iteration)
    slices = slices_of(space)
    first = gaussian(slices or space, draw) if start is None else _start(start, space, slices)
    krylov = Krylov(sliced(operator), make_basis(slices or space, storage), first, draw, watch)
    with deterministic_kernels(exact=True):
        _run(krylov, k, limit, tolerance if steps is None else None, progress)
        return _spikes(krylov, k, signs, tolerance, space, watch)


def check_count(k: int, limit: int, dimension: int) -> None:
    """Refuse to seek more spikes than there are Lanczos steps, or weights."""
    if not 1 <= k <= limit:
        what = f"only {limit} Lanczos steps" if limit < dimension else f"only {dimension} weights"
        raise InputError(f"spikes: got {k}, but there are {what}; ask for 1 to {limit}, or allow more steps")


def _check(k: int, limit: int, steps: int | None, tolerance: float, storage: Storage | None, dimension: int) -> None:
    check_count(k, limit, dimension)
    if not 0 < tolerance < 1:
        raise InputError(f"tolerance: got {tolerance:g}; it must be between 0 and 1")
    needed = min(steps or k + 3, dimension)
    if storage is not None and storage.rows < needed:
        raise InputError(f"storage: got room for {storage.rows} vectors; give room for {needed} or more")


def _start(given: Tensor, space: VectorSpace, slices: Slices | None) -> Tensor:
    if given.shape != (space.dimension,):
        raise InputError(f"start: got shape {tuple(given.shape)}; it must be ({space.dimension},)")
    start = given.detach().to(space.device, space.dtype)
    return start if slices is None else slices.own(start)


def _run(krylov: Krylov, k: int, limit: int, tolerance: float | None, progress: Progress | None) -> None:
    """Take `limit` steps, or fewer if a tolerance is given and the k leading pairs meet it."""
    rows = krylov.basis.storage.rows
    # Aim a little lower, because the pairs are rounded once more at the end.
    aim = None if tolerance is None else max(0.0, tolerance**2 - krylov.basis.rounding**2) ** 0.5
    for step in range(1, limit + 1):
        if krylov.full:
            krylov.restart(_keep(k, rows))
        krylov.extend()
        if progress is not None:
            # Of a search that goes on, the share done still rises.
            likely = limit if aim is None else max(STEPS_PER_SPIKE * k, step + k)
            progress(step, min(likely, limit))
        if aim is not None and krylov.since_exhausted >= k and (krylov.ritz().residuals[:k] <= aim).all():
            return


def _keep(k: int, rows: int) -> int:
    """How many Ritz vectors a restart keeps: the k wanted, and some more for faster convergence."""
    return min(k + (rows - k) // 3, rows - 2)


def _spikes(krylov: Krylov, k: int, signs: Signs, tolerance: float, space: VectorSpace, watch: Watch) -> Spectrum:
    ritz = krylov.ritz()
    # An eigenvalue within rounding of zero is not a spike.
    count = k if signs == "all" else int(positive(ritz.values, space.dtype)[:k].sum())
    basis = krylov.basis
    held = basis.nbytes
    moved = basis.rotate(torch.from_numpy(ritz.rows[:count]), last=True).numpy()
    return Spectrum(
        eigenvalues=ritz.values[:count],
        vectors=basis.vectors(),
        residuals=relative(np.hypot(ritz.errors[:count], ritz.moving(moved)), ritz.values[:count]),
        tolerance=tolerance,
        steps=krylov.products,
        space=space,
        storage=basis.storage,
        basis_bytes=held,
        peak_bytes=watch.peak(),
        slices=slices_of(space),
    )
