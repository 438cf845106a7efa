"""How many independent trade-offs S offers, and how much of that is noise (section 10)."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import xlogy
from torch import nn

from hessian_surgery.curvature.lanczos import Spectrum
from hessian_surgery.curvature.search import SpikeSearch
from hessian_surgery.data.labelled import Data, LabelledSet
from hessian_surgery.errors import require
from hessian_surgery.evidence.effective_rank import SensitivityStructure, analyse
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.paper.sensitivity import Correct, Labels, probe_answers, sensitivity_from_answers
from hessian_surgery.plain_modes import in_plain_modes
from hessian_surgery.report.figure_style import BLUE, SKY, VERMILION, new_figure
from hessian_surgery.seeding import numpy_generator
from hessian_surgery.short_repr import short_repr
from hessian_surgery.studies.progress import part_of, spike_work
from hessian_surgery.studies.study_inputs import SEARCH, open_calibration_data, open_finder
from hessian_surgery.types import Array, Progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Resampled:
    """A figure of S, and its values if the images of each class are drawn again with replacement.

    Noise in S moves the effective rank towards the middle of its range: up if few singular values
    lead, down if all are alike. A resampled S has this noise twice, so its percentiles can miss the
    truth altogether. `corrected` and `interval` mirror the resampled values at the estimate. With
    fewer than some hundred images per class, even these stay biased.

    Attributes:
        estimate: from all images.
        mean: of the resampled values.
        percentiles: their 2.5 % and 97.5 % points.
        corrected: 2 · estimate − mean, the estimate minus the bootstrap's bias, clipped to the
            possible range.
        interval: 2 · estimate − percentiles, the 95 % interval of the basic bootstrap, clipped too.
    """

    estimate: float
    mean: float
    percentiles: tuple[float, float]
    corrected: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class EffectiveRank:
    """The singular values of S, and their noise.

    Attributes:
        classes: class names.
        images: the number of images that S was measured on.
        epsilon: ε of S.
        eigenvalues: of the spikes.
        residuals: relative residual of each.
        sensitivity: S (K rows of C), fractions per unit of amplitude.
        structure: singular values, effective rank, σ₁/σ₂, ‖S‖_F.
        leading_energy: the share of the first two singular values in Σσ²; None if S is zero.
        resamples: the number of resamples.
        effective_rank: its estimate and noise.
        flatness: the same for σ₁/σ₂; None if σ₂ is 0, in S or in a resample.
        singular_value_percentiles: 2.5 % and 97.5 % points of each resampled singular value.
        resampled_ranks: the effective rank in each resample.

    Example:
        >>> found = hs.effective_rank_study(model, train, calibration, hs.SpikeSearch(spikes=2))
        >>> len(found.structure.singular_values)
        2
    """

    classes: tuple[str, ...]
    images: int
    epsilon: float
    eigenvalues: list[float]
    residuals: list[float]
    sensitivity: list[list[float]]
    structure: SensitivityStructure
    leading_energy: float | None
    resamples: int
    effective_rank: Resampled
    flatness: Resampled | None
    singular_value_percentiles: list[tuple[float, float]]
    resampled_ranks: list[float]

    __repr__ = short_repr

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


@in_plain_modes
def effective_rank_study(
    model: nn.Module | Classifier,
    training_data: Data,
    calibration_data: Data,
    search: SpikeSearch = SEARCH,
    *,
    epsilon: float = 0.01,
    bootstrap: int = 1000,
    parameters: str = "*",
    seed: int = 0,
    progress: Progress | None = None,
) -> EffectiveRank:
    """Measure S and the noise in its effective rank.

    The model's answer to every image is kept, and resampling the images shows the noise.

    Args:
        model: the trained classifier; its weights come back bit for bit.
        training_data: images that the Hessian batch is drawn from.
        calibration_data: images that S is measured on, in 2K passes.
        search: how spikes are sought.
        epsilon: ε, the probe's amplitude.
        bootstrap: the number of resamples.
        parameters: glob over the weights that spikes are directions of, such as `layer4.*`.
        seed: fixes the batch, the start vector and the resamples.
        progress: called with (done, total).

    Example:
        >>> found = hs.effective_rank_study(model, train, calibration, hs.SpikeSearch(spikes=2))
        >>> 1 <= found.structure.effective_rank <= 2
        True
    """
    require(epsilon > 0, "epsilon", epsilon, "positive")
    require(bootstrap >= 1, "bootstrap", bootstrap, "at least 1")
    finder = open_finder(model, training_data, search, parameters, seed)
    data = open_calibration_data(model, calibration_data)
    work = (spike_work(finder), 2 * finder.count * len(data))
    part_of(progress, 0, work)(0, 1)
    spectrum = finder.find(progress=part_of(progress, 0, work))
    correct = probe_answers(finder.classifier, spectrum, data, epsilon, progress=part_of(progress, 1, work))
    return analyse_probe(correct, data, spectrum, epsilon, bootstrap, seed)


def resample(correct: Correct, labels: Labels, classes: int, epsilon: float, resamples: int, seed: int) -> Array:
    """S (resamples, K, C) of images that are drawn again with replacement within each class.

    An image enters S through the K differences between its answers. Most images of a class share a
    few patterns of differences. So one multinomial draw over the patterns resamples the class, and
    S is a matrix product with the counts.
    """
    rng = numpy_generator(seed, "bootstrap")
    difference = correct[0::2].astype(np.float64) - correct[1::2]
    drawn = np.empty((resamples, len(difference), classes))
    for j in range(classes):
        patterns, counts = np.unique(difference[:, labels == j], axis=1, return_counts=True)
        size = counts.sum()
        weights = rng.multinomial(size, counts / size, size=resamples)
        drawn[:, :, j] = weights @ patterns.T / (size * 2 * epsilon)
    return drawn


def analyse_probe(
    correct: Correct, data: LabelledSet, spectrum: Spectrum, epsilon: float, resamples: int, seed: int
) -> EffectiveRank:
    """Compute S from a probe's answers (2K, N), its singular values, and the noise of both."""
    labels = data.labels.numpy()
    classes = len(data.classes)
    matrix = sensitivity_from_answers(correct, labels, classes, epsilon)
    structure = analyse(matrix, data.classes)
    matrices = resample(correct, labels, classes, epsilon, resamples, seed)
    drawn = np.asarray(np.linalg.svd(matrices, compute_uv=False), dtype=np.float64)
    ranks = effective_ranks(drawn)
    second = drawn[:, 1] if drawn.shape[1] > 1 else np.zeros(resamples)
    energy = np.square(structure.singular_values)
    return EffectiveRank(
        classes=data.classes,
        images=len(data),
        epsilon=epsilon,
        eigenvalues=spectrum.eigenvalues.tolist(),
        residuals=spectrum.residuals.tolist(),
        sensitivity=matrix.tolist(),
        structure=structure,
        leading_energy=float(energy[:2].sum() / energy.sum()) if energy.any() else None,
        resamples=resamples,
        effective_rank=resampled(structure.effective_rank, ranks, highest=drawn.shape[1]),
        flatness=resampled(structure.flatness, drawn[:, 0] / second) if structure.flatness and second.all() else None,
        singular_value_percentiles=[_percentiles(values) for values in drawn.T],
        resampled_ranks=ranks.tolist(),
    )


def resampled(estimate: float, values: Array, highest: float = np.inf) -> Resampled:
    """Set an estimate beside its resampled values (B,).

    It lies between 1 and `highest`, or is 0 if S is zero.
    """
    mean = float(values.mean())
    low, high = _percentiles(values)
    mirrored = np.clip(2 * estimate - np.array([mean, high, low]), min(1.0, estimate), highest)
    corrected, bottom, top = mirrored.tolist()
    return Resampled(estimate, mean, (low, high), corrected, (bottom, top))


def effective_ranks(singular_values: Array) -> Array:
    """The effective rank for each row of singular values (B, K); 0 if all of them are 0."""
    energy = np.square(singular_values)
    total = energy.sum(axis=1, keepdims=True)
    share = np.divide(energy, total, out=np.zeros_like(energy), where=total > 0)
    return np.where(total[:, 0] > 0, np.exp(-xlogy(share, share).sum(axis=1)), 0.0)


def _percentiles(values: Array) -> tuple[float, float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def describe(result: EffectiveRank) -> str:
    """The main figures in a few sentences."""
    rank = result.effective_rank
    sentences = [
        f"S of {len(result.eigenvalues)} spikes on {result.images} images has effective rank {rank.estimate:.2f}. "
        f"Corrected for the noise of the images it is {rank.corrected:.2f}, with the 95 % interval "
        f"[{rank.interval[0]:.2f}, {rank.interval[1]:.2f}]."
    ]
    if result.flatness is not None:
        low, high = result.flatness.interval
        sentences.append(f"σ₁/σ₂ is {result.flatness.estimate:.2f} [{low:.2f}, {high:.2f}].")
    if result.leading_energy is not None:
        share = f"{100 * result.leading_energy:.1f} % of its energy is in two directions"
        sentences.append(f"‖S‖_F is {result.structure.frobenius:.3g}; {share}.")
    return " ".join(sentences)


def draw(result: EffectiveRank) -> "Figure":
    """Draw the singular values of S with their resampled band, and the resampled ranks."""
    figure, (left, right) = new_figure(1, 2, size=(10, 4.4))
    values = result.structure.singular_values
    ranks = range(1, len(values) + 1)
    low, high = zip(*result.singular_value_percentiles, strict=True)
    left.fill_between(ranks, low, high, color=SKY, alpha=0.4, label="95 % of resamples")
    left.plot(ranks, values, "o-", color=BLUE, label="all images")
    left.set(title="Singular values of S", xlabel="rank", ylabel="singular value (fraction per unit)", ylim=(0, None))
    _draw_ranks(right, result)
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=9)
    return figure


def _draw_ranks(axes: "Axes", result: EffectiveRank) -> None:
    rank = result.effective_rank
    axes.hist(result.resampled_ranks, bins=30, color=SKY, label="resampled")
    axes.axvline(rank.estimate, color=BLUE, label=f"all images: {rank.estimate:.2f}")
    axes.axvline(rank.corrected, color=VERMILION, linestyle="--", label=f"minus noise: {rank.corrected:.2f}")
    axes.axvspan(*rank.interval, color=VERMILION, alpha=0.12, zorder=0, label="95 % interval")
    axes.set(title="Effective rank of S", xlabel="effective rank", ylabel="number of resamples")
