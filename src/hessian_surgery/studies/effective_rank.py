"""How many independent trade-offs S really offers, and how much of that is noise (section 10)."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy
from torch import nn

from hessian_surgery.curvature.lanczos import Spectrum
from hessian_surgery.curvature.search import SpikeSearch
from hessian_surgery.data.labelled import Data, LabelledSet
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.effective_rank import SensitivityStructure, analyse
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import predict
from hessian_surgery.report.figure_style import BLUE, SKY, VERMILION, new_figure
from hessian_surgery.seeding import numpy_generator
from hessian_surgery.studies.setting import SEARCH, open_finder, open_measured, part_of, spike_rows
from hessian_surgery.types import Array, Progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Correct: TypeAlias = NDArray[np.bool_]
Labels: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Resampled:
    """A figure of S when the images are drawn anew, with replacement, within each class.

    Noise in S moves the effective rank towards the middle of its range: up where few singular values lead, down where
    all are alike. A resampled S has that noise twice, so that its percentiles can miss the truth altogether;
    `corrected` and `interval` mirror them at the estimate. Below some hundred images a class even these stay biased.

    Attributes:
        estimate: from all images.
        mean: of the resampled values.
        percentiles: their 2.5 % and 97.5 % points.
        corrected: 2 · estimate − mean, the estimate less the bootstrap's bias, kept within what is possible.
        interval: 2 · estimate − percentiles, the (basic) bootstrap's 95 % interval, likewise.
    """

    estimate: float
    mean: float
    percentiles: tuple[float, float]
    corrected: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class EffectiveRank:
    """The spectrum of S and its noise.

    Attributes:
        classes: class names.
        images: how many S was measured on.
        epsilon: ε of S.
        eigenvalues: of the spikes.
        residuals: relative residual of each.
        sensitivity: S (K rows of C), fractions per unit of amplitude.
        structure: singular values, effective rank, σ₁/σ₂, ‖S‖_F.
        leading_energy: the share of the first two singular values in Σσ²; None where S is zero.
        resamples: how many.
        effective_rank: its estimate and noise.
        flatness: likewise of σ₁/σ₂; None where σ₂ is 0, in a resample too.
        singular_value_percentiles: 2.5 % and 97.5 % points of each resampled singular value.
        resampled_ranks: the effective rank in each resample.
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

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def effective_rank_study(
    model: nn.Module | Classifier,
    training_data: Data,
    calibration_data: Data,
    search: SpikeSearch = SEARCH,
    *,
    parameters: str = "*",
    seed: int = 0,
    epsilon: float = 0.01,
    bootstrap: int = 1000,
    progress: Progress | None = None,
) -> EffectiveRank:
    """S with every image's answers kept, so that its noise can be told by resampling them.

    Args:
        model: the trained classifier; its weights come back bit for bit.
        training_data: what the Hessian batch is drawn from.
        calibration_data: images that S is measured on, in 2K passes.
        search: how spikes are sought.
        parameters: glob over the weights that spikes are directions of, such as `layer4.*`.
        seed: fixes the batch, the start vector and whatever else is drawn.
        epsilon: ε of S.
        bootstrap: resamples.
        progress: called with (done, total).
    """
    if epsilon <= 0:
        raise InputError(f"epsilon: got {epsilon}; the probe's amplitude must be positive")
    if bootstrap < 1:
        raise InputError(f"bootstrap: got {bootstrap}; at least one resample is needed")
    finder = open_finder(model, training_data, search, parameters, seed)
    data = open_measured(model, calibration_data, "calibration_data")
    spectrum = finder.find(progress=part_of(progress, 0, 2))
    correct = probe(finder.classifier, spectrum, data, epsilon, part_of(progress, 1, 2))
    return analyse_probe(correct, data, spectrum, epsilon, bootstrap, seed)


def probe(
    classifier: Classifier, spectrum: Spectrum, data: LabelledSet, epsilon: float, progress: Progress | None = None
) -> Correct:
    """Which images are right (2K, N) at θ + ε q₁, θ − ε q₁, θ + ε q₂, …"""
    rows = []
    for i, direction in enumerate(spike_rows(spectrum)):
        for step in (epsilon, -epsilon):
            with spectrum.weights.keeping_weights():
                spectrum.weights.perturb(direction, step)
                rows.append((predict(classifier, data) == data.labels).numpy())
        if progress is not None:
            progress(i + 1, len(spectrum))
    return np.stack(rows)


def matrix_of(correct: Correct, labels: Labels, classes: int, epsilon: float) -> Array:
    """S (K, C) from a probe's answers (2K, N): what `sensitivity` gives, to the last bit."""
    members = labels[:, None] == np.arange(classes)
    accuracy = correct.astype(np.float64) @ members / members.sum(axis=0)
    return (accuracy[0::2] - accuracy[1::2]) / (2 * epsilon)


def resample(correct: Correct, labels: Labels, classes: int, epsilon: float, resamples: int, seed: int) -> Array:
    """S (resamples, K, C) of images drawn anew within each class.

    An image enters S by the K differences of its answers. Most images of a class share a few patterns of them, so that
    drawing the class anew is one multinomial draw over the patterns, and S a matrix product with the counts.
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
    """S from a probe's answers (2K, N), its spectrum, and the noise of both."""
    labels, classes = data.labels.numpy(), len(data.classes)
    matrix = matrix_of(correct, labels, classes, epsilon)
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
    """An estimate beside its resampled values (B,), of something between 1 and `highest`; 0 where S is zero."""
    mean, (low, high) = float(values.mean()), _percentiles(values)
    mirrored = np.clip(2 * estimate - np.array([mean, high, low]), min(1.0, estimate), highest)
    corrected, bottom, top = mirrored.tolist()
    return Resampled(estimate, mean, (low, high), corrected, (bottom, top))


def effective_ranks(singular_values: Array) -> Array:
    """`effective_rank` for each row of singular values (B, K); 0 where all of them are."""
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
        f"S of {len(result.eigenvalues)} spikes on {result.images} images has effective rank {rank.estimate:.2f}; with "
        f"the noise of the images taken off it is {rank.corrected:.2f}, 95 % interval "
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
    """Left: singular values of S with the band of their resampled values. Right: resampled effective ranks."""
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
    axes.axvline(rank.corrected, color=VERMILION, linestyle="--", label=f"less noise: {rank.corrected:.2f}")
    axes.axvspan(*rank.interval, color=VERMILION, alpha=0.12, zorder=0, label="95 % interval")
    axes.set(title="Effective rank of S", xlabel="effective rank", ylabel="resamples")
