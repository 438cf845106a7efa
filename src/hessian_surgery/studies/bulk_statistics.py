"""The bulk in figures: its size, its trace, and its share of negative eigenvalues (section 5.1)."""

from dataclasses import dataclass

import numpy as np

from hessian_surgery.curvature.density import Density
from hessian_surgery.errors import InputError
from hessian_surgery.types import Array


@dataclass(frozen=True)
class Bulk:
    """What lies below the spikes (section 5.1), from the density's quadrature rules.

    Attributes:
        median: of |λ| over the bulk. The median of λ would be almost 0: the bulk has both signs.
        quantiles: 90 %, 99 % and 99.9 % points of |λ| over the bulk.
        anisotropy: λ₁ over the median.
        trace: Σ λ over the whole spectrum.
        trace_se: standard error of the trace over the probes; None with one probe.
        spike_share: the sum of the spikes' eigenvalues, divided by the trace.
        negative_share: the share of eigenvalues below −`resolution`.
        resolution: the mean distance of Ritz values in the bulk; narrower detail is not resolved.
    """

    median: float
    quantiles: list[float]
    anisotropy: float
    trace: float
    trace_se: float | None
    spike_share: float
    negative_share: float
    resolution: float


def measure_bulk(density: Density, spikes: Array, lowest: float | None = None) -> Bulk:
    """Measure the bulk of a density: what is below the smallest of the spikes (K,), or `lowest`."""
    # A little below the last spike: rounding scatters its own Ritz values.
    edge = 0.99 * float(spikes[-1] if lowest is None else lowest)
    trace, error = density.trace
    median = density.quantile(0.5, below=edge)
    nodes = np.concatenate(density.nodes)
    weights = np.concatenate(density.weights)
    bulk = [values[values < edge] for values in density.nodes]
    if not any(len(values) for values in bulk):
        raise InputError("spikes: no part of the spectrum lies below them; ask for fewer, or for no density")
    resolution = float(np.mean([np.ptp(values) / max(1, len(values) - 1) for values in bulk if len(values)]))
    return Bulk(
        median=median,
        quantiles=[density.quantile(share, below=edge) for share in (0.9, 0.99, 0.999)],
        anisotropy=float(spikes[0]) / median if median > 0 else float("inf"),
        trace=trace,
        trace_se=None if np.isnan(error) else error,
        spike_share=float(spikes.sum()) / trace,
        negative_share=float(weights[nodes < -resolution].sum() / len(density.nodes)),
        resolution=resolution,
    )
