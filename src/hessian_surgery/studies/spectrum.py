"""The spectrum of the loss curvature: spikes, and the density of all eigenvalues (4, 5.1)."""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

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
from hessian_surgery.errors import require
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.plain_modes import in_plain_modes
from hessian_surgery.report.figure_style import BLUE, GREY, VERMILION, new_figure, scale_eigenvalues
from hessian_surgery.short_repr import short_repr
from hessian_surgery.studies.bulk_statistics import Bulk, measure_bulk
from hessian_surgery.studies.progress import part_of
from hessian_surgery.studies.study_inputs import LOG, SEARCH, open_finder
from hessian_surgery.types import Array, Progress
from hessian_surgery.weights.tensorfile import save_tensors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OperatorName: TypeAlias = Literal["hessian", "gauss-newton"]
OPERATORS: dict[OperatorName, type[Hessian] | type[GaussNewton]] = {"hessian": Hessian, "gauss-newton": GaussNewton}


@dataclass(frozen=True)
class SpectrumReport:
    """Spikes and density, and the time that they took.

    Attributes:
        operator: "hessian" or "gauss-newton".
        parameters: the glob that the weights match.
        weights: p.
        samples: n.
        spectrum: the spikes.
        density: by stochastic Lanczos quadrature; None if it was not asked for.
        bulk: see `Bulk`; None without a density.
        seconds: of the spikes, and of the density.

    Example:
        >>> report = hs.spectrum_study(model, train, hs.SpikeSearch(spikes=2), density=False)
        >>> report.weights, len(report.spectrum.eigenvalues)
        (51, 2)
    """

    operator: OperatorName
    parameters: str
    weights: int
    samples: int
    spectrum: Spectrum
    density: Density | None
    bulk: Bulk | None
    seconds: dict[str, float]

    __repr__ = short_repr

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        found = self.spectrum
        memory = {"basis_bytes": found.basis_bytes, "peak_bytes": found.peak_bytes}
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
            "memory": asdict(found.storage) | memory,
            "density": self.density.as_dict() if self.density else None,
            "bulk": asdict(self.bulk) if self.bulk else None,
            "seconds": self.seconds,
        }

    def save_vectors(self, path: Path) -> None:
        """Write eigenvalues (K), residuals (K) and vectors (K, p) as safetensors.

        The file also holds the names and sizes of the weights.
        """
        found = self.spectrum
        space = found.weights
        sizes = [str(parameter.numel()) for parameter in space.parameters]
        tensors = {
            "eigenvalues": torch.from_numpy(found.eigenvalues),
            "residuals": torch.from_numpy(found.residuals),
            "vectors": found.whole_vectors(),
        }
        save_tensors(path, tensors, {"parameters": ",".join(space.names), "sizes": ",".join(sizes)})


@in_plain_modes
def spectrum_study(
    model: nn.Module | Classifier,
    training_data: Data,
    search: SpikeSearch = SEARCH,
    *,
    operator: OperatorName = "hessian",
    density: bool = True,
    density_steps: int = 90,
    probes: int = 10,
    parameters: str = "*",
    seed: int = 0,
    progress: Progress | None = None,
) -> SpectrumReport:
    """Find the leading eigenpairs, and the density of all eigenvalues.

    Args:
        model: the trained classifier.
        training_data: images that the batch is drawn from.
        search: how spikes are sought, and where the density's vectors are kept.
        operator: "hessian" or "gauss-newton".
        density: whether to estimate the density of all eigenvalues too.
        density_steps: m, Lanczos steps per probe of the density.
        probes: k, random vectors that the density averages over.
        parameters: glob over the weights that spikes are directions of, such as `layer4.*`.
        seed: fixes the batch, the start vector and the probes.
        progress: called with (done, total).

    Example:
        >>> report = hs.spectrum_study(model, train, hs.SpikeSearch(spikes=2), density=False)
        >>> report.operator
        'hessian'
    """
    require(operator in OPERATORS, "operator", operator, " or ".join(OPERATORS))
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
    work = [finder.likely_steps] if density_room is None else [finder.likely_steps, probes * density_room.rows]
    part_of(progress, 0, work)(0, 1)
    started = time.perf_counter()
    product = finder.operator(OPERATORS[operator])
    spectrum = finder.find(product, progress=part_of(progress, 0, work))
    seconds = {"spikes": time.perf_counter() - started}
    density = None
    if density_room is not None:
        density = spectral_density(
            product,
            steps=density_room.rows,
            probes=probes,
            storage=density_room,
            seed=finder.seed,
            progress=part_of(progress, 1, work),
        )
        seconds["density"] = time.perf_counter() - started - seconds["spikes"]
    return SpectrumReport(
        operator=operator,
        parameters=parameters,
        weights=finder.space.dimension,
        samples=len(finder.data),
        spectrum=spectrum,
        density=density,
        bulk=measure_bulk(density, _positive(spectrum), _lowest(spectrum)) if density else None,
        seconds=seconds,
    )


def _positive(spectrum: Spectrum) -> Array:
    """The positive eigenvalues."""
    return spectrum.eigenvalues[spectrum.eigenvalues > 0]


def _lowest(spectrum: Spectrum) -> float:
    """Where the bulk begins: at the smallest positive eigenvalue, converged if one is."""
    values = _positive(spectrum)
    converged = values[spectrum.converged[: len(values)]]
    return float((converged if len(converged) else values).min())


def _density_storage(finder: SpikeFinder, steps: int) -> Storage:
    """Plan room for the density's vectors beside the spikes', before either is computed."""
    require(steps >= 1, "density_steps", steps, "at least 1")
    space = finder.space
    taken = basis_bytes(finder.storage, space) if finder.storage.place == "device" else 0
    search = replace(finder.search, spikes=None, lanczos_steps=min(steps, space.dimension))
    storage = plan_basis(finder.classifier, space, finder.data, search, 0, taken=taken)
    LOG.info(f"density: {describe_storage(storage, space)}")
    return storage


def describe(result: SpectrumReport) -> str:
    """The main figures in a few sentences."""
    found = result.spectrum
    values = ", ".join(f"{value:.3g}" for value in found.eigenvalues[:10])
    storage = describe_storage(found.storage, found.space)
    more = f" … {found.eigenvalues[-1]:.3g}" if len(found) > 10 else ""
    sentences = [
        f"λ = {values}{more}: {int(found.converged.sum())} of {len(found)} have converged to {found.tolerance:g} "
        f"(largest residual {found.residuals.max():.2g}) in {found.steps} products, {result.seconds['spikes']:.1f} s.",
        f"{storage[0].upper()}{storage[1:]}; the run held {found.peak_bytes / 1e9:.2f} GB "
        "in addition to the model, the batch and its graph.",
    ]
    if result.bulk is not None:
        bulk = result.bulk
        error = "" if bulk.trace_se is None else f" ± {bulk.trace_se:.2g}"
        sentences.append(
            f"In half of the bulk |λ| is below {bulk.median:.2g}, and λ₁ is {bulk.anisotropy:.3g} times that; the "
            f"trace is {bulk.trace:.4g}{error}, and these spikes make up {100 * bulk.spike_share:.0f} % of it."
        )
    return " ".join(sentences)


def draw(result: SpectrumReport) -> "Figure":
    """Draw the density with the spikes marked, and the bulk; without a density the spikes alone."""
    figure, (left, right) = new_figure(1, 2, size=(10, 4.4))
    if result.density is None:
        _draw_spikes(left, right, result.spectrum)
    else:
        _draw_spectrum(left, right, result, result.density)
    return figure


def _draw_spikes(left: "Axes", right: "Axes", spectrum: Spectrum) -> None:
    """The spikes and their residuals."""
    ranks = np.arange(1, len(spectrum) + 1)
    left.plot(ranks, spectrum.eigenvalues, "o-", color=BLUE, markersize=4)
    scale_eigenvalues(left, spectrum.eigenvalues)
    left.set(title="Spikes", xlabel="rank", ylabel="λ")
    right.semilogy(ranks, spectrum.residuals, "o-", color=BLUE, markersize=4)
    right.axhline(spectrum.tolerance, color=GREY, linestyle="--", label="tolerance")
    right.set(title="How well they have converged", xlabel="rank", ylabel="‖Hq − λq‖ / λ")
    right.legend(frameon=False, fontsize=9)


def _draw_spectrum(left: "Axes", right: "Axes", result: SpectrumReport, density: Density) -> None:
    """All of the density, with the spikes marked, and its bulk."""
    values = result.spectrum.eigenvalues
    lowest = min(float(nodes.min()) for nodes in density.nodes)
    highest = float(values[0])
    edge = _lowest(result.spectrum)
    draw_density(left, density, (min(1.05 * lowest, -0.02 * highest), 1.05 * highest), 0.002 * highest)
    for i, value in enumerate(values):
        left.axvline(value, color=VERMILION, linestyle="--", linewidth=0.8, label=None if i else "spikes")
    left.set_title("Whole spectrum")
    left.legend(frameon=False, fontsize=9)
    resolution = result.bulk.resolution if result.bulk else 0.0
    draw_density(right, density, (max(1.05 * lowest, -edge), edge), max(np.sqrt(density.variance), resolution))
    right.set_title("Bulk")


def draw_density(axes: "Axes", density: Density, ends: tuple[float, float], width: float) -> None:
    """φ on a log axis between two ends, with a kernel of at least `width`.

    A narrower kernel would fall between the points that are drawn.
    """
    points = np.linspace(*ends, 4000)
    width = max(width, 2 * (points[1] - points[0]))
    shown = Density(density.nodes, density.weights, width**2, density.dimension)
    mean, error = shown.at(points)
    floor = 1e-3 / (density.dimension * width)
    axes.semilogy(points, np.maximum(mean, floor), color=BLUE, linewidth=1)
    if not np.isnan(error).any():
        low = np.maximum(mean - error, floor)
        axes.fill_between(points, low, np.maximum(mean + error, floor), color=BLUE, alpha=0.2)
    axes.set(xlabel="λ", ylabel=f"density φ (kernel {width:.2g})", ylim=(floor, None))
