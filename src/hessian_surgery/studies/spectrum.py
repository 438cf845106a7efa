"""The spectrum at the present weights: spikes with residuals, and the density with its bulk (sections 4 and 5.1)."""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import nn

from hessian_surgery.curvature.basis import Storage
from hessian_surgery.curvature.density import Density, spectral_density
from hessian_surgery.curvature.gauss_newton import GaussNewton
from hessian_surgery.curvature.hessian import Hessian
from hessian_surgery.curvature.lanczos import Spectrum
from hessian_surgery.curvature.memory_plan import basis_bytes, describe_storage
from hessian_surgery.curvature.search import SpikeFinder, SpikeSearch, plan_basis
from hessian_surgery.data.labelled import Data
from hessian_surgery.errors import InputError
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.report.figure_style import BLUE, GREY, VERMILION, new_figure
from hessian_surgery.studies.setting import LOG, SEARCH, open_finder, part_of
from hessian_surgery.types import Array, Progress
from hessian_surgery.weights.tensorfile import save_tensors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OperatorName: TypeAlias = Literal["hessian", "gauss-newton"]
OPERATORS: dict[OperatorName, type[Hessian] | type[GaussNewton]] = {"hessian": Hessian, "gauss-newton": GaussNewton}


@dataclass(frozen=True)
class Bulk:
    """What lies below the spikes (section 5.1), by the quadrature rules of the density.

    Attributes:
        median: of |λ| over the bulk; the signed median is next to nothing, since the bulk has both signs.
        quantiles: 90 %, 99 % and 99.9 % points of |λ| over the bulk.
        anisotropy: λ₁ over the median.
        trace: Σ λ over the whole spectrum.
        trace_se: its standard error over the probes; None with one probe.
        spike_share: Σ of the spikes over the trace.
        negative_share: the share of eigenvalues below −`resolution`.
        resolution: the mean distance of Ritz values in the bulk: what is narrower is not resolved.
    """

    median: float
    quantiles: list[float]
    anisotropy: float
    trace: float
    trace_se: float | None
    spike_share: float
    negative_share: float
    resolution: float


@dataclass(frozen=True)
class SpectrumReport:
    """Spikes, density and what they took.

    Attributes:
        operator: "hessian" or "gauss-newton".
        parameters: the glob that the weights match.
        weights: p.
        samples: n.
        spectrum: the spikes.
        density: by SLQ; None where it was not asked for.
        bulk: see `Bulk`; None without a density.
        seconds: of the spikes, and of the density.
    """

    operator: OperatorName
    parameters: str
    weights: int
    samples: int
    spectrum: Spectrum
    density: Density | None
    bulk: Bulk | None
    seconds: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        found, storage = self.spectrum, self.spectrum.storage
        return {
            "operator": self.operator,
            "parameters": self.parameters,
            "weights": self.weights,
            "samples": self.samples,
            "eigenvalues": found.eigenvalues.tolist(),
            "residuals": found.residuals.tolist(),
            "tolerance": found.tolerance,
            "converged": int(found.converged.sum()),
            "products": found.steps,
            "memory": asdict(storage) | {"basis_bytes": found.basis_bytes, "peak_bytes": found.peak_bytes},
            "density": self.density.as_dict() if self.density else None,
            "bulk": asdict(self.bulk) if self.bulk else None,
            "seconds": self.seconds,
        }

    def save_vectors(self, path: Path) -> None:
        """Write eigenvalues (K), residuals (K) and vectors (K, p) as safetensors, with the weights' names and sizes."""
        found, space = self.spectrum, self.spectrum.weights
        sizes = [str(parameter.numel()) for parameter in space.parameters]
        tensors = {
            "eigenvalues": torch.from_numpy(found.eigenvalues),
            "residuals": torch.from_numpy(found.residuals),
            "vectors": found.vectors,
        }
        save_tensors(path, tensors, {"parameters": ",".join(space.names), "sizes": ",".join(sizes)})


def spectrum_study(
    model: nn.Module | Classifier,
    training_data: Data,
    search: SpikeSearch = SEARCH,
    *,
    parameters: str = "*",
    seed: int = 0,
    operator: OperatorName = "hessian",
    density: bool = True,
    density_steps: int = 90,
    probes: int = 10,
    progress: Progress | None = None,
) -> SpectrumReport:
    """The leading eigenpairs, and the density of all eigenvalues.

    Args:
        model: the trained classifier.
        training_data: what the batch is drawn from.
        search: how spikes are sought, and where the density's vectors are kept.
        parameters: glob over the weights that spikes are directions of, such as `layer4.*`.
        seed: fixes the batch, the start vector and whatever else is drawn.
        operator: "hessian" or "gauss-newton".
        density: whether to estimate the density of all eigenvalues too.
        density_steps: m of the density.
        probes: k of the density.
        progress: called with (done, total).
    """
    if operator not in get_args(OperatorName):
        raise InputError(f"operator: got {operator!r}; give {' or '.join(get_args(OperatorName))}")
    finder = open_finder(model, training_data, search, parameters, seed)
    room = _density_storage(finder, density_steps) if density else None
    return _measure(finder, parameters, operator, room, probes, progress)


def _measure(
    finder: SpikeFinder,
    parameters: str,
    operator: OperatorName,
    density_room: Storage | None,
    probes: int,
    progress: Progress | None,
) -> SpectrumReport:
    parts, started = (1 if density_room is None else 2), time.perf_counter()
    product = finder.operator(OPERATORS[operator])
    spectrum = finder.find(product, progress=part_of(progress, 0, parts))
    seconds = {"spikes": time.perf_counter() - started}
    density = None
    if density_room is not None:
        density = spectral_density(
            product,
            steps=density_room.rows,
            probes=probes,
            storage=density_room,
            seed=finder.seed,
            progress=part_of(progress, 1, parts),
        )
        seconds["density"] = time.perf_counter() - started - seconds["spikes"]
    return SpectrumReport(
        operator=operator,
        parameters=parameters,
        weights=finder.space.dimension,
        samples=len(finder.data),
        spectrum=spectrum,
        density=density,
        bulk=measure_bulk(density, spectrum.eigenvalues) if density else None,
        seconds=seconds,
    )


def _density_storage(finder: SpikeFinder, steps: int) -> Storage:
    """Room for the density's vectors, beside the spikes', found before either is begun."""
    if steps < 1:
        raise InputError(f"density_steps: got {steps}; it must be at least 1")
    space = finder.space
    taken = basis_bytes(finder.storage, space) if finder.storage.place == "device" else 0
    search = replace(finder.search, spikes=None, lanczos_steps=min(steps, space.dimension))
    storage = plan_basis(finder.classifier, space, finder.data, search, 0, taken=taken)
    LOG.info(f"density: {describe_storage(storage, space)}")
    return storage


def measure_bulk(density: Density, spikes: Array) -> Bulk:
    """The bulk of a density, below the smallest of the spikes (K,)."""
    edge = 0.99 * float(spikes[-1])  # below the last spike's own Ritz values, which rounding scatters
    trace, error = density.trace
    median = density.quantile(0.5, below=edge)
    nodes, weights = np.concatenate(density.nodes), np.concatenate(density.weights)
    bulk = [values[values < edge] for values in density.nodes]
    if not any(len(values) for values in bulk):
        raise InputError("spikes: nothing of the spectrum lies below them; ask for fewer, or --no-density")
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


def describe(result: SpectrumReport) -> str:
    """The main figures in a few sentences."""
    found = result.spectrum
    values = ", ".join(f"{value:.3g}" for value in found.eigenvalues[:10])
    more = f" … {found.eigenvalues[-1]:.3g}" if len(found) > 10 else ""
    sentences = [
        f"λ = {values}{more}: {int(found.converged.sum())} of {len(found)} have converged to {found.tolerance:g} "
        f"(largest residual {found.residuals.max():.2g}) in {found.steps} products, {result.seconds['spikes']:.1f} s.",
        f"B{describe_storage(found.storage, found.space)[1:]}; the run held {found.peak_bytes / 1e9:.2f} GB "
        "beside the model, the batch and its graph.",
    ]
    if result.bulk is not None:
        bulk = result.bulk
        error = "" if bulk.trace_se is None else f" ± {bulk.trace_se:.2g}"
        sentences.append(
            f"Half of the bulk is below {bulk.median:.2g} in size, λ₁ is {bulk.anisotropy:.3g} times that; the trace "
            f"is {bulk.trace:.4g}{error}, {100 * bulk.spike_share:.0f} % of it in these spikes."
        )
    return " ".join(sentences)


def draw(result: SpectrumReport) -> "Figure":
    """With a density: all of it with the spikes marked, and the bulk. Without: the spikes and their residuals."""
    figure, (left, right) = new_figure(1, 2, size=(10, 4.4))
    values, density = result.spectrum.eigenvalues, result.density
    if density is None:
        ranks = np.arange(1, len(values) + 1)
        left.semilogy(ranks, values, "o-", color=BLUE, markersize=4)
        left.set(title="Spikes", xlabel="rank", ylabel="λ")
        right.semilogy(ranks, result.spectrum.residuals, "o-", color=BLUE, markersize=4)
        right.axhline(result.spectrum.tolerance, color=GREY, linestyle="--", label="tolerance")
        right.set(title="How well they have converged", xlabel="rank", ylabel="‖Hq − λq‖ / λ")
        right.legend(frameon=False, fontsize=9)
        return figure
    lowest = min(float(nodes.min()) for nodes in density.nodes)
    highest, edge = float(values[0]), float(values[-1])
    _draw_density(left, density, (min(1.05 * lowest, -0.02 * highest), 1.05 * highest), 0.002 * highest)
    for i, value in enumerate(values):
        left.axvline(value, color=VERMILION, linestyle="--", linewidth=0.8, label=None if i else "spikes")
    left.set_title("Whole spectrum")
    left.legend(frameon=False, fontsize=9)
    resolution = result.bulk.resolution if result.bulk else 0.0
    _draw_density(right, density, (max(1.05 * lowest, -edge), edge), max(np.sqrt(density.variance), resolution))
    right.set_title("Bulk")
    return figure


def _draw_density(axes: "Axes", density: Density, ends: tuple[float, float], width: float) -> None:
    """log φ between two ends; a kernel narrower than `width` would fall between the points drawn."""
    points = np.linspace(*ends, 4000)
    width = max(width, 2 * (points[1] - points[0]))
    shown = Density(density.nodes, density.weights, width**2, density.dimension)
    mean, error = shown.at(points)
    floor = 1e-3 / (density.dimension * width)
    axes.semilogy(points, np.maximum(mean, floor), color=BLUE, linewidth=1)
    if not np.isnan(error).any():
        axes.fill_between(
            points, np.maximum(mean - error, floor), np.maximum(mean + error, floor), color=BLUE, alpha=0.2
        )
    axes.set(xlabel="λ", ylabel=f"density φ (kernel {width:.2g})", ylim=(floor, None))
