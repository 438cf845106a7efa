"""How much spikes depend on the Hessian batch and on the number of Lanczos steps (appendix A)."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import nn

from hessian_surgery.curvature.lanczos import Spectrum
from hessian_surgery.curvature.search import SpikeFinder, SpikeSearch
from hessian_surgery.data.labelled import Data, LabelledSet, as_part
from hessian_surgery.errors import InputError, require
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.plain_modes import in_plain_modes
from hessian_surgery.report.figure_style import BLUE, GREEN, VERMILION, new_figure, scale_eigenvalues
from hessian_surgery.seeding import generator
from hessian_surgery.short_repr import short_repr
from hessian_surgery.studies.progress import part_of
from hessian_surgery.studies.spike_agreement import Agreement, agreement
from hessian_surgery.studies.study_inputs import SEARCH, open_finder
from hessian_surgery.types import Progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Result = TypeVar("Result")
# Products that are timed at each batch size.
TIMED_PRODUCTS = 3
# The paper's batch sizes.
SIZES = (64, 128, 256, 512)


@dataclass(frozen=True)
class LanczosRun:
    """One Lanczos run.

    Attributes:
        eigenvalues: of the spikes, in descending order.
        residuals: relative residual of each.
        converged: how many of them meet the tolerance.
        products: Hessian products, which is the number of steps.
        seconds: of the whole run.
        against_largest: agreement with the run of the same kind on the largest batch; None for that
            run itself.
    """

    eigenvalues: list[float]
    residuals: list[float]
    converged: int
    products: int
    seconds: float
    against_largest: Agreement | None


@dataclass(frozen=True)
class BatchSize:
    """What one batch size gives.

    Attributes:
        samples: n.
        product_seconds: of one Hessian product, the median of a few.
        fixed: the run with exactly m steps.
        converged: the run that goes on until the spikes have converged.
        fixed_against_converged: agreement of the two runs: what it costs to stop at m steps.
    """

    samples: int
    product_seconds: float
    fixed: LanczosRun
    converged: LanczosRun
    fixed_against_converged: Agreement


@dataclass(frozen=True)
class Stability:
    """Spikes by batch size.

    Attributes:
        spikes: K asked for.
        steps: m of the fixed runs.
        tolerance: relative residual at which a spike has converged.
        parameters: p, the number of weights.
        subspaces: the k for which the spans of the k leading spikes are compared.
        sizes: one entry per batch size, ascending; each batch contains the smaller ones.

    Example:
        >>> found = hs.stability(model, train, hs.SpikeSearch(spikes=2), sizes=(32, 64))
        >>> [size.samples for size in found.sizes]
        [32, 64]
    """

    spikes: int
    steps: int
    tolerance: float
    parameters: int
    subspaces: tuple[int, ...]
    sizes: tuple[BatchSize, ...]

    __repr__ = short_repr

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; angles in degrees."""
        return asdict(self)


@dataclass(frozen=True)
class _Spectra:
    """The spikes of both runs on one batch."""

    fixed: Spectrum
    converged: Spectrum


@in_plain_modes
def stability(
    model: nn.Module | Classifier,
    training_data: Data,
    search: SpikeSearch = SEARCH,
    *,
    sizes: Sequence[int] | None = None,
    subspaces: Sequence[int] = (3, 6, 9),
    steps: int = 10,
    parameters: str = "*",
    seed: int = 0,
    progress: Progress | None = None,
) -> Stability:
    """Find spikes on nested batches from one start vector, with m steps and to convergence.

    Of m steps the K largest Ritz pairs count, whatever their sign, as in the paper.

    Args:
        model: the trained classifier; it is not changed.
        training_data: images that the batches are drawn from.
        search: how spikes are sought. The study sets `hessian_samples` and `lanczos_steps` itself.
        sizes: batch sizes n. Runs are compared with the largest. By default the paper's sizes for
            which there are enough images.
        subspaces: the k for which the spans of the k leading spikes are compared; those above K are
            left out.
        steps: m of the fixed runs, the paper's 10.
        parameters: glob over the weights that spikes are directions of, such as `layer4.*`.
        seed: fixes the batches and the start vector.
        progress: called with (done, total) as Lanczos steps are taken.

    Example:
        >>> found = hs.stability(model, train, hs.SpikeSearch(spikes=2), sizes=(32, 64))
        >>> found.spikes
        2
    """
    data = as_part(training_data, "training_data")
    sizes = _checked_sizes(sizes, len(data))
    require(steps >= 1, "steps", steps, "at least 1")
    varied = replace(search, hessian_samples=max(sizes), lanczos_steps=None)
    converging = open_finder(model, data, varied, parameters, seed)
    fixed = converging.with_steps(steps)
    compared = tuple(k for k in subspaces if k <= converging.count)
    found: list[BatchSize] = []
    reference: _Spectra | None = None
    # From the largest batch down: so the vectors of at most two batches are held at a time.
    sizes = sorted(sizes, reverse=True)
    part_of(progress, 0, sizes)(0, 1)
    for i, batch in enumerate(nested_batches(converging.data, sizes, seed)):
        finders = (replace(fixed, data=batch), replace(converging, data=batch))
        at_size, spectra = _study_batch(*finders, reference, compared, part_of(progress, i, sizes))
        found.append(at_size)
        reference = reference or spectra
    dimension = converging.space.dimension
    return Stability(converging.count, steps, search.tolerance, dimension, compared, tuple(reversed(found)))


def _checked_sizes(sizes: Sequence[int] | None, images: int) -> Sequence[int]:
    if sizes is None:
        sizes = [size for size in SIZES if size <= images]
    if not sizes or min(sizes) < 1:
        raise InputError(f"sizes: got {tuple(sizes)}; give one or more batch sizes of at least 1")
    if max(sizes) > images:
        raise InputError(f"sizes: got {max(sizes)}, but training_data has only {images} images; give {images} at most")
    return sizes


def nested_batches(pool: LabelledSet, sizes: Sequence[int], seed: int) -> list[LabelledSet]:
    """Draw one batch per size; a smaller batch is part of every larger one."""
    order = torch.randperm(len(pool), generator=generator(seed, "stability"))
    return [pool.subset(order[:size]) for size in sizes]


def _study_batch(
    fixed_finder: SpikeFinder,
    converging_finder: SpikeFinder,
    reference: _Spectra | None,
    subspaces: Sequence[int],
    progress: Progress,
) -> tuple[BatchSize, _Spectra]:
    operator = converging_finder.operator()
    work = (fixed_finder.likely_steps, converging_finder.likely_steps)
    fixed, fixed_seconds = _timed(lambda: fixed_finder.find(operator, progress=part_of(progress, 0, work)))
    converged, converged_seconds = _timed(lambda: converging_finder.find(operator, progress=part_of(progress, 1, work)))
    # Timed after the runs: a first product may include some setting up.
    vector = fixed.vector(0)
    seconds = [_timed(lambda: operator @ vector)[1] for _ in range(TIMED_PRODUCTS)]
    progress(1, 1)
    at_size = BatchSize(
        samples=len(converging_finder.data),
        product_seconds=statistics.median(seconds),
        fixed=_run(fixed, reference.fixed if reference else None, subspaces, fixed_seconds),
        converged=_run(converged, reference.converged if reference else None, subspaces, converged_seconds),
        fixed_against_converged=agreement(fixed, converged, subspaces),
    )
    return at_size, _Spectra(fixed, converged)


def _run(spectrum: Spectrum, largest: Spectrum | None, subspaces: Sequence[int], seconds: float) -> LanczosRun:
    return LanczosRun(
        eigenvalues=spectrum.eigenvalues.tolist(),
        residuals=spectrum.residuals.tolist(),
        converged=int(spectrum.converged.sum()),
        products=spectrum.steps,
        seconds=seconds,
        against_largest=None if largest is None else agreement(spectrum, largest, subspaces),
    )


def _timed(call: Callable[[], Result]) -> tuple[Result, float]:
    """What a call returns, and the seconds that it took, with the GPU's work finished."""
    start = time.perf_counter()
    result = call()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return result, time.perf_counter() - start


def describe(result: Stability) -> str:
    """The main figures in a few sentences."""
    largest = result.sizes[-1]
    smallest = result.sizes[0]
    sentences = [
        f"At n = {largest.samples}, {largest.fixed.converged} of {result.spikes} spikes have converged after "
        f"{result.steps} Lanczos steps (relative residual at most {result.tolerance:g}), and "
        f"{largest.converged.converged} after {largest.converged.products} steps."
    ]
    if largest.fixed_against_converged.angles:
        cost = largest.fixed_against_converged.angles[-1]
        sentences.append(
            f"Stopping at {result.steps} steps turns the span of the {cost.subspace} leading spikes by "
            f"{cost.mean:.1f}° on average and {cost.largest:.1f}° at most."
        )
    change = smallest.converged.against_largest
    if change is not None and change.angles:
        turn = change.angles[-1]
        sentences.append(
            f"From n = {largest.samples} to {smallest.samples} the span of the {turn.subspace} leading converged "
            f"spikes turns by {turn.mean:.1f}° on average and {turn.largest:.1f}° at most, and λ₁ goes from "
            f"{largest.converged.eigenvalues[0]:.4g} to {smallest.converged.eigenvalues[0]:.4g}."
        )
    return " ".join(sentences)


def draw(result: Stability) -> "Figure":
    """Draw the eigenvalues at each n, and for each k how far the span of k spikes turns."""
    rows = 1 + len(result.subspaces) // 2
    figure, (first, *others) = new_figure(rows, 2, size=(9, 3.5 * rows + 0.5))
    _draw_eigenvalues(first, result)
    for axes, k in zip(others, result.subspaces, strict=False):
        _draw_angles(axes, result, k)
    for spare in others[len(result.subspaces) :]:
        spare.remove()
    handles, labels = others[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=10)
    return figure


def _draw_eigenvalues(axes: "Axes", result: Stability) -> None:
    shades = np.linspace(0.3, 1.0, len(result.sizes))
    for size, shade in zip(result.sizes, shades, strict=True):
        for run, style, colour in ((size.converged, "o-", BLUE), (size.fixed, "x--", VERMILION)):
            ranks = range(1, len(run.eigenvalues) + 1)
            axes.plot(ranks, run.eigenvalues, style, color=colour, alpha=shade, markersize=5)
    axes.set(xlabel="rank of the spike", ylabel="eigenvalue λ", title="Spikes (larger n is darker)")
    scale_eigenvalues(axes, [value for size in result.sizes for value in size.fixed.eigenvalues])


def _draw_angles(axes: "Axes", result: Stability, k: int) -> None:
    kinds: tuple[tuple[str, str, list[Agreement | None]], ...] = (
        ("converged, against largest n", BLUE, [size.converged.against_largest for size in result.sizes]),
        (f"{result.steps} steps, against largest n", VERMILION, [size.fixed.against_largest for size in result.sizes]),
        (f"{result.steps} steps, against converged", GREEN, [size.fixed_against_converged for size in result.sizes]),
    )
    for offset, (label, colour, agreements) in zip((-0.27, 0.0, 0.27), kinds, strict=True):
        found = [(i + offset, agreed.at(k)) for i, agreed in enumerate(agreements) if agreed is not None]
        bars = [(place, angles) for place, angles in found if angles is not None]
        places = [place for place, _ in bars]
        axes.bar(places, [angles.mean for _, angles in bars], width=0.25, color=colour, label=label)
        axes.plot(places, [angles.largest for _, angles in bars], "_", color=colour, markersize=10, markeredgewidth=2)
    axes.set_xticks(range(len(result.sizes)), [str(size.samples) for size in result.sizes])
    axes.set(xlabel="batch size n", ylabel="degrees (bar: mean, dash: largest)", ylim=(0, 92))
    axes.set_title(f"Angle of the {k} leading spikes")
