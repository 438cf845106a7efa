"""The spectral density by stochastic Lanczos quadrature (section 4.4), its trace and quantiles."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hessian_surgery.curvature.basis import Storage
from hessian_surgery.curvature.krylov import Krylov, gaussian
from hessian_surgery.curvature.memory_plan import choose_storage
from hessian_surgery.curvature.operators import Operator, space_of
from hessian_surgery.curvature.slices import make_basis, sliced
from hessian_surgery.errors import InputError
from hessian_surgery.model.classifier import deterministic_kernels
from hessian_surgery.plain_modes import in_plain_modes
from hessian_surgery.seeding import generator
from hessian_surgery.short_repr import short_repr
from hessian_surgery.types import Array, Progress


@dataclass(frozen=True)
class Density:
    """φ(t) = (1/p) Σ_i δ(t − λ_i), as the quadrature rules of k probes.

    Attributes:
        nodes: the Ritz values ℓ of each probe (k arrays of at most m).
        weights: their weights ω (k arrays that each sum to 1).
        variance: σ² of the Gaussian that stands for each δ.
        dimension: p.

    Example:
        >>> matrix = torch.diag(torch.tensor([1.0, 2.0, 3.0]))
        >>> density = hs.spectral_density(matrix, steps=3, probes=2)
        >>> density.dimension
        3
    """

    nodes: tuple[Array, ...]
    weights: tuple[Array, ...]
    variance: float
    dimension: int

    __repr__ = short_repr

    def at(self, points: Array) -> tuple[Array, Array]:
        """φ_σ at points (t,), and its standard error over the probes (t,)."""
        each = np.array([gaussian_sum(points, n, w, self.variance) for n, w in self._rules()])
        return each.mean(axis=0), _standard_error(each)

    @property
    def trace(self) -> tuple[float, float]:
        """Σ λ, and its standard error over the probes."""
        each = self.dimension * np.array([n @ w for n, w in self._rules()])
        return float(each.mean()), float(_standard_error(each))

    def quantile(self, share: float, below: float = np.inf) -> float:
        """The |λ| that a `share` of the eigenvalues under `below` stay within, over all probes."""
        nodes = np.concatenate(self.nodes)
        counted = nodes < below
        sizes = np.abs(nodes[counted])
        order = np.argsort(sizes)
        reached = np.cumsum(np.concatenate(self.weights)[counted][order])
        return float(sizes[order][np.searchsorted(reached, share * reached[-1])])

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        trace, error = self.trace
        return {
            "nodes": [values.tolist() for values in self.nodes],
            "weights": [values.tolist() for values in self.weights],
            "variance": self.variance,
            "dimension": self.dimension,
            "trace": trace,
            "trace_se": None if np.isnan(error) else error,
        }

    def _rules(self) -> list[tuple[Array, Array]]:
        return list(zip(self.nodes, self.weights, strict=True))


@in_plain_modes
def spectral_density(
    operator: Operator,
    *,
    steps: int = 90,
    probes: int = 10,
    variance: float = 1e-5,
    storage: Storage | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Density:
    """The density of an operator's eigenvalues, by m Lanczos steps from each of k random vectors.

    Args:
        operator: symmetric: a `Hessian` or the like, a dense tensor (p, p), or any `Operator`; a
            plain function can be wrapped in a `FunctionOperator`.
        steps: m.
        probes: k; the error falls as 1/√k.
        variance: σ² of the Gaussian kernel.
        storage: where to keep the m vectors of a probe; by default what fits (`choose_storage`).
        seed: fixes the probes.
        progress: called with (products taken, products in all).

    Example:
        >>> matrix = torch.diag(torch.tensor([1.0, 2.0, 3.0]))
        >>> hs.spectral_density(matrix, steps=3, probes=2).dimension
        3
    """
    for name, value in (("steps", steps), ("probes", probes)):
        if value < 1:
            raise InputError(f"{name}: got {value}; it must be at least 1")
    space = space_of(operator)
    steps = min(steps, space.dimension)
    storage = storage or choose_storage(space, steps, steps=steps)
    operator = sliced(operator)
    space = space_of(operator)
    basis = make_basis(space, storage)
    nodes = []
    weights = []
    with deterministic_kernels(exact=True):
        for probe in range(probes):
            basis.clear()
            draw = generator(seed, "density", probe)
            krylov = Krylov(operator, basis, gaussian(space, draw), draw)
            for step in range(steps):
                krylov.extend()
                if progress is not None:
                    progress(probe * steps + step + 1, probes * steps)
                if krylov.exhausted:
                    break
            ritz = krylov.ritz()
            nodes.append(ritz.values)
            weights.append(ritz.rows[:, 0] ** 2)
    return Density(tuple(nodes), tuple(weights), variance, space.dimension)


def gaussian_sum(points: Array, centres: Array, weights: Array, variance: float) -> Array:
    """Σ_i w_i N(t; c_i, σ²) at points (t,)."""
    gaps = points[:, None] - centres
    return np.exp(-(gaps**2) / (2 * variance)) @ weights / np.sqrt(2 * np.pi * variance)


def _standard_error(each: Array) -> Array:
    """The standard error of the mean over the first axis; NaN for a single probe."""
    count = len(each)
    return each.std(axis=0, ddof=1) / np.sqrt(count) if count > 1 else np.full(each.shape[1:], np.nan)
