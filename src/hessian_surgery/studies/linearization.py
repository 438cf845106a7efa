"""How linear class accuracies are along planned steps: Sᵀα and what is measured (appendix D)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from hessian_surgery.curvature.search import SpikeFinder, SpikeSearch
from hessian_surgery.data.labelled import Data, LabelledSet
from hessian_surgery.errors import InputError, require
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.paper.plan import Plan, plan, strong_floor, strong_threshold
from hessian_surgery.paper.sensitivity import accuracies, sensitivity
from hessian_surgery.plain_modes import in_plain_modes
from hessian_surgery.report.figure_style import BLUE, GREY, VERMILION, new_figure
from hessian_surgery.short_repr import short_repr
from hessian_surgery.studies.curve_fits import Fit, fit_line, fit_offset_power, fit_power_law
from hessian_surgery.studies.progress import part_of, spike_work
from hessian_surgery.studies.study_inputs import SEARCH, open_calibration_data, open_finder
from hessian_surgery.types import Array, Progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The paper's.
AMPLITUDES = tuple(float(amplitude) for amplitude in np.geomspace(5e-4, 5.5e-2, 38))


@dataclass(frozen=True)
class Step:
    """One planned step; accuracies are fractions.

    Attributes:
        alpha_max: the amplitude, which bounds ‖α‖.
        alpha: α (K).
        norm: ‖α‖. It is α_max unless protected classes make the plan stop short of it.
        predicted: Sᵀα (C).
        measured: the change of each class's accuracy (C).
        predicted_norm: ‖Sᵀα‖.
        measured_norm: the norm of the measured change.
        error_norm: the norm of the difference between predicted and measured change.
    """

    alpha_max: float
    alpha: list[float]
    norm: float
    predicted: list[float]
    measured: list[float]
    predicted_norm: float
    measured_norm: float
    error_norm: float


@dataclass(frozen=True)
class Fits:
    """Curves fitted to the norms as functions of ‖α‖.

    Attributes:
        predicted: b ‖α‖.
        measured: c + b ‖α‖.
        error: c + b ‖α‖ᵈ with c ≥ 0, by least squares (eq. 15).
        error_power_law: b ‖α‖ᵈ, by least squares in logarithms. Its `r_squared` compares with that
            of `error`.
        damping: measured slope over predicted slope; None if one is missing.
    """

    predicted: Fit
    measured: Fit
    error: Fit
    error_power_law: Fit
    damping: float | None


@dataclass(frozen=True)
class Linearization:
    """Planned steps of many lengths.

    Attributes:
        classes: class names.
        epsilon: ε of S.
        exponent: p of the class-error weights.
        strong_above: the accuracy above which classes were protected.
        eigenvalues: of the spikes.
        residuals: relative residual of each.
        sensitivity: S (K rows of C).
        steps: one per amplitude, in the order given.
        fits: see `Fits`.

    Example:
        >>> search = hs.SpikeSearch(spikes=2)
        >>> found = hs.linearization(model, train, calibration, search, amplitudes=(0.1, 0.5))
        >>> len(found.steps)
        2
    """

    classes: tuple[str, ...]
    epsilon: float
    exponent: float
    strong_above: float
    eigenvalues: list[float]
    residuals: list[float]
    sensitivity: list[list[float]]
    steps: tuple[Step, ...]
    fits: Fits

    __repr__ = short_repr

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


@in_plain_modes
def linearization(
    model: nn.Module | Classifier,
    training_data: Data,
    calibration_data: Data,
    search: SpikeSearch = SEARCH,
    *,
    amplitudes: Sequence[float] = AMPLITUDES,
    epsilon: float = 0.01,
    exponent: float = 2.0,
    strong_above: float | None = None,
    parameters: str = "*",
    seed: int = 0,
    progress: Progress | None = None,
) -> Linearization:
    """Predict and measure the change of class accuracies for planned steps of many lengths.

    Spikes and S are found once. For each amplitude a step is planned (eq. 5) and applied, its
    effect is measured on the same images, and it is rolled back.

    Args:
        model: the trained classifier; its weights come back bit for bit.
        training_data: images that the Hessian batch is drawn from.
        calibration_data: images that S and the changes are measured on.
        search: how spikes are sought.
        amplitudes: α_max of each step.
        epsilon: ε, the probe's amplitude for S.
        exponent: p of the class-error weights.
        strong_above: classes above this accuracy are protected (the paper's 0.85). None means above
            the mean plus one σ.
        parameters: glob over the weights that spikes are directions of, such as `layer4.*`.
        seed: fixes the batch and the start vector.
        progress: called with (done, total).

    Example:
        >>> search = hs.SpikeSearch(spikes=2)
        >>> found = hs.linearization(model, train, calibration, search, amplitudes=(0.1, 0.5))
        >>> found.classes
        ('ant', 'bee', 'cat')
    """
    fraction = strong_above is None or 0 <= strong_above <= 1
    require(fraction, "strong_above", strong_above, "a fraction between 0 and 1")
    if not amplitudes:
        raise InputError("amplitudes: got none; give at least one α_max")
    finder = open_finder(model, training_data, search, parameters, seed)
    data = open_calibration_data(model, calibration_data)
    return _sweep(finder, data, amplitudes, epsilon, exponent, strong_above, progress)


def _sweep(
    finder: SpikeFinder,
    data: LabelledSet,
    amplitudes: Sequence[float],
    epsilon: float,
    exponent: float,
    strong_above: float | None,
    progress: Progress | None,
) -> Linearization:
    classifier = finder.classifier
    work = (spike_work(finder), 2 * finder.count * len(data), len(amplitudes) * len(data))
    part_of(progress, 0, work)(0, 1)
    spectrum = finder.find(progress=part_of(progress, 0, work))
    matrix = sensitivity(classifier, spectrum, data, epsilon, progress=part_of(progress, 1, work))
    start = accuracies(classifier, data)
    threshold = strong_threshold(start) if strong_above is None else strong_above
    floor = strong_floor(start, threshold=threshold)
    steps = []
    for i, amplitude in enumerate(amplitudes):
        planned = plan(matrix, start, amplitude, exponent, floor=floor)
        with finder.space.keeping_weights():
            finder.space.perturb(spectrum.combine(planned.alpha))
            measured = accuracies(classifier, data) - start
        steps.append(_step(amplitude, planned, measured))
        part_of(progress, 2, work)(i + 1, len(amplitudes))
    return Linearization(
        classes=data.classes,
        epsilon=epsilon,
        exponent=exponent,
        strong_above=threshold,
        eigenvalues=spectrum.eigenvalues.tolist(),
        residuals=spectrum.residuals.tolist(),
        sensitivity=matrix.tolist(),
        steps=tuple(steps),
        fits=fit_norms(steps),
    )


def _step(amplitude: float, planned: Plan, measured: Array) -> Step:
    return Step(
        alpha_max=amplitude,
        alpha=planned.alpha.tolist(),
        norm=float(np.linalg.norm(planned.alpha)),
        predicted=planned.predicted.tolist(),
        measured=measured.tolist(),
        predicted_norm=float(np.linalg.norm(planned.predicted)),
        measured_norm=float(np.linalg.norm(measured)),
        error_norm=float(np.linalg.norm(planned.predicted - measured)),
    )


def fit_norms(steps: Sequence[Step]) -> Fits:
    """Fit the curves of appendix D."""
    norm = np.array([step.norm for step in steps])
    error = np.array([step.error_norm for step in steps])
    predicted = fit_line(norm, np.array([step.predicted_norm for step in steps]), through_zero=True)
    measured = fit_line(norm, np.array([step.measured_norm for step in steps]))
    return Fits(
        predicted=predicted,
        measured=measured,
        error=fit_offset_power(norm, error),
        error_power_law=fit_power_law(norm, error),
        damping=measured.curve.slope / predicted.curve.slope if measured.curve and predicted.curve else None,
    )


def describe(result: Linearization) -> str:
    """The main figures in a few sentences."""
    fits = result.fits
    longest = max(result.steps, key=lambda step: step.norm)
    sentences = [
        f"{len(result.steps)} planned steps up to ‖α‖ = {longest.norm:.3g}. For the longest, the predicted change of "
        f"class accuracies has norm {longest.predicted_norm:.3g}, the measured change {longest.measured_norm:.3g}."
    ]
    if fits.damping is not None:
        sentences.append(f"The measured change grows {fits.damping:.2f} times as fast as the predicted one.")
    named = (("c + b‖α‖ᵈ", fits.error), ("b‖α‖ᵈ", fits.error_power_law))
    sentences += [f"The error fits {name} {_in_words(fit)}." for name, fit in named]
    return " ".join(sentences)


def _in_words(fit: Fit) -> str:
    if fit.curve is None:
        return f"not at all: {fit.failure}"
    curve = fit.curve
    return f"with c = {curve.intercept:.2g}, b = {curve.slope:.2g}, d = {curve.exponent:.2f} (R² {curve.r_squared:.3f})"


def draw(result: Linearization) -> "Figure":
    """Draw the norms (left) and the error on log–log axes (right) against ‖α‖, with their fits."""
    figure, (left, right) = new_figure(1, 2, size=(10, 4.4))
    fits = result.fits
    steps = result.steps
    _draw_points(left, steps, "predicted_norm", fits.predicted, BLUE, "predicted ‖Sᵀα‖")
    _draw_points(left, steps, "measured_norm", fits.measured, VERMILION, "measured")
    left.set(title="Change of class accuracies", ylabel="norm of the change (fraction)")
    _draw_points(right, steps, "error_norm", fits.error, BLUE, "predicted − measured")
    _draw_curve(right, steps, fits.error_power_law, GREY)
    right.set(title="Error of the linearization", ylabel="norm of the error (fraction)")
    if any(step.error_norm > 0 for step in steps):
        right.set(xscale="log", yscale="log")
    for axes in (left, right):
        axes.set_xlabel("‖α‖")
        axes.legend(frameon=False, fontsize=9)
    return figure


def _draw_points(axes: "Axes", steps: Sequence[Step], norm: str, fit: Fit, colour: str, label: str) -> None:
    shown = [(step.norm, getattr(step, norm)) for step in steps]
    axes.plot(*zip(*shown, strict=True), "o", color=colour, markersize=4.5, label=label)
    _draw_curve(axes, steps, fit, colour)


def _draw_curve(axes: "Axes", steps: Sequence[Step], fit: Fit, colour: str) -> None:
    if fit.curve is not None:
        norms = [step.norm for step in steps if step.norm > 0]
        x = np.geomspace(min(norms), max(norms), 100)
        axes.plot(x, fit.curve(x), "--", color=colour, label=str(fit.curve))
