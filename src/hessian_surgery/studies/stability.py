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
from hessian_surgery.data.labelled import Data, LabelledSet, as_labelled
from hessian_surgery.errors import InputError
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.report.figure_style import BLUE, GREEN, VERMILION, new_figure
from hessian_surgery.seeding import generator
from hessian_surgery.studies.setting import SEARCH, open_finder, part_of, spike_rows
from hessian_surgery.studies.subspaces import common_coordinates, diagonal_cosines, matched_cosines, principal_angles
from hessian_surgery.types import Progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Result = TypeVar("Result")
TIMED_PRODUCTS = 3

SIZES = (64, 128, 256, 512)


@dataclass(frozen=True)
class Angles:
    """Principal angles between the spans of the k leading spikes of two runs.

    Attributes:
        subspace: k.
        largest: the largest angle, in degrees.
        mean: the mean of the k angles, in degrees.
    """

    subspace: int
    largest: float
    mean: float


@dataclass(frozen=True)
class Agreement:
    """How close the spikes of one run are to those of another.

    Attributes:
        matched_mean: mean |cos| of greedily matched spikes.
        matched_min: the smallest of them.
        diagonal_mean: mean |cos| of spikes of the same rank.
        angles: for each k that both runs have spikes for.
    """

    matched_mean: float
    matched_min: float
    diagonal_mean: float
    angles: tuple[Angles, ...]

    def at(self, k: int) -> Angles | None:
        """The angles between the k leading spikes of both runs; None where one of them has fewer."""
        return next((angles for angles in self.angles if angles.subspace == k), None)


@dataclass(frozen=True)
class LanczosRun:
    """One Lanczos run.

    Attributes:
        eigenvalues: of the spikes, in descending order.
        residuals: relative residual of each.
        converged: how many of them meet the tolerance.
        products: Hessian products, which is the number of steps.
        seconds: of the whole run.
        against_largest: agreement with the run of the same kind on the largest batch; None for that one itself.
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
        fixed_against_converged: what stopping at m steps costs on this batch.
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
        subspaces: for which k spans are compared.
        sizes: one entry per batch size, ascending; each batch holds the ones before it.
    """

    spikes: int
    steps: int
    tolerance: float
    parameters: int
    subspaces: tuple[int, ...]
    sizes: tuple[BatchSize, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; angles in degrees."""
        return asdict(self)


@dataclass(frozen=True)
class _Pair:
    """The spectra of both kinds on one batch."""

    fixed: Spectrum
    converged: Spectrum


def stability(
    model: nn.Module | Classifier,
    data: Data,
    search: SpikeSearch = SEARCH,
    *,
    parameters: str = "*",
    seed: int = 0,
    sizes: Sequence[int] | None = None,
    subspaces: Sequence[int] = (3, 6, 9),
    steps: int = 10,
    progress: Progress | None = None,
) -> Stability:
    """Spikes on nested batches, from the same start vector, with m steps and to convergence.

    Args:
        model: the trained classifier; it stays as it is.
        data: the pool, usually training images.
        search: how spikes are sought. This study sets `hessian_samples` and `lanczos_steps` itself.
        parameters: glob over the weights that spikes are directions of, such as `layer4.*`.
        seed: fixes the batch, the start vector and whatever else is drawn.
        sizes: batch sizes n; the largest is the reference. By default the paper's, as far as there are images.
        subspaces: for which k the span of the k leading spikes is compared; those above K are left out.
        steps: m of the fixed runs, the paper's 10.
        progress: called with (done, total) as Lanczos steps are taken.
    """
    data = as_labelled(data)
    sizes = [size for size in SIZES if size <= len(data)] if sizes is None else sizes
    if not sizes or min(sizes) < 1:
        raise InputError(f"sizes: got {tuple(sizes)}; give one or more batch sizes of at least 1")
    if max(sizes) > len(data):
        raise InputError(f"sizes: got {max(sizes)}, but data has only {len(data)} images; ask for no more")
    if steps < 1:
        raise InputError(f"steps: got {steps}; a Lanczos run takes at least one")
    varied = replace(search, hessian_samples=max(sizes), lanczos_steps=None)
    converging = open_finder(model, data, varied, parameters, seed)
    fixed = converging.with_steps(steps)
    spikes = converging.count
    compared = tuple(k for k in subspaces if k <= spikes)
    found: list[BatchSize] = []
    reference: _Pair | None = None
    # From the largest down, so that no more than two batches' vectors are held at a time.
    for i, batch in enumerate(nested_batches(converging.data, sorted(sizes, reverse=True), seed)):
        finders = (replace(fixed, data=batch), replace(converging, data=batch))
        at_size, pair = _study_batch(*finders, reference, compared, part_of(progress, i, len(sizes)))
        found.append(at_size)
        reference = reference or pair
    dimension = converging.space.dimension
    return Stability(spikes, steps, search.tolerance, dimension, compared, tuple(reversed(found)))


def nested_batches(pool: LabelledSet, sizes: Sequence[int], seed: int) -> list[LabelledSet]:
    """One batch per size: prefixes of one random order, so that a smaller one is part of a larger one."""
    order = torch.randperm(len(pool), generator=generator(seed, "stability"))
    return [pool.subset(order[:size]) for size in sizes]


def agreement(one: Spectrum, other: Spectrum, subspaces: Sequence[int]) -> Agreement:
    """How close two sets of spikes are; k beyond what either has is left out."""
    a, b = common_coordinates(spike_rows(one), spike_rows(other))
    matched = matched_cosines(a, b)
    angles = []
    for k in subspaces:
        if k <= min(len(one), len(other)):
            between = principal_angles(a[:k], b[:k])
            angles.append(Angles(k, float(between.max()), float(between.mean())))
    diagonal = diagonal_cosines(a, b)
    return Agreement(float(matched.mean()), float(matched.min()), float(diagonal.mean()), tuple(angles))


def _study_batch(
    limited: SpikeFinder, unlimited: SpikeFinder, reference: _Pair | None, subspaces: Sequence[int], progress: Progress
) -> tuple[BatchSize, _Pair]:
    operator = unlimited.operator()
    fixed, fixed_seconds = _timed(lambda: limited.find(operator, progress=part_of(progress, 0, 2)))
    converged, converged_seconds = _timed(lambda: unlimited.find(operator, progress=part_of(progress, 1, 2)))
    # After the runs, so that whatever a first product sets up is not counted.
    vector = spike_rows(fixed)[0]
    seconds = [_timed(lambda: operator @ vector)[1] for _ in range(TIMED_PRODUCTS)]
    progress(1, 1)
    at_size = BatchSize(
        samples=len(unlimited.data),
        product_seconds=statistics.median(seconds),
        fixed=_run(fixed, reference.fixed if reference else None, subspaces, fixed_seconds),
        converged=_run(converged, reference.converged if reference else None, subspaces, converged_seconds),
        fixed_against_converged=agreement(fixed, converged, subspaces),
    )
    return at_size, _Pair(fixed, converged)


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
    """What a call gives, and the seconds it took, with a GPU's work finished."""
    start = time.perf_counter()
    result = call()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return result, time.perf_counter() - start


def describe(result: Stability) -> str:
    """The main figures in a few sentences."""
    largest, smallest = result.sizes[-1], result.sizes[0]
    sentences = [
        f"With {result.steps} Lanczos steps {largest.fixed.converged} of {result.spikes} spikes have converged at "
        f"n = {largest.samples} (relative residual at most {result.tolerance:g}); "
        f"left to converge, {largest.converged.converged} have after {largest.converged.products} steps."
    ]
    if largest.fixed_against_converged.angles:
        cost = largest.fixed_against_converged.angles[-1]
        sentences.append(
            f"Stopping at {result.steps} turns the span of the {cost.subspace} leading spikes by {cost.mean:.1f}° on "
            f"average and {cost.largest:.1f}° at most."
        )
    nearer = smallest.converged.against_largest
    if nearer is not None and nearer.angles:
        turn = nearer.angles[-1]
        sentences.append(
            f"From n = {largest.samples} to {smallest.samples} the converged span of {turn.subspace} turns by "
            f"{turn.mean:.1f}° on average and {turn.largest:.1f}° at most, and λ₁ goes from "
            f"{largest.converged.eigenvalues[0]:.4g} to {smallest.converged.eigenvalues[0]:.4g}."
        )
    return " ".join(sentences)


def draw(result: Stability) -> "Figure":
    """Eigenvalues by rank for each n, then for each k the angles of the span of the k leading spikes."""
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
    # Larger batches are drawn darker.
    shades = np.linspace(0.3, 1.0, len(result.sizes))
    for size, shade in zip(result.sizes, shades, strict=True):
        for run, style, colour in ((size.converged, "o-", BLUE), (size.fixed, "x--", VERMILION)):
            axes.plot(
                range(1, len(run.eigenvalues) + 1), run.eigenvalues, style, color=colour, alpha=shade, markersize=5
            )
    axes.set(xlabel="rank of the spike", ylabel="eigenvalue λ", title="Spikes (larger n darker)", yscale="log")


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
    axes.set(xlabel="batch size n", ylabel="degrees: mean, largest as dash", ylim=(0, 92))
    axes.set_title(f"Angle of the {k} leading spikes")
