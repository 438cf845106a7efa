"""The figures of a page as files: classes, responses, spectrum and iterations."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hessian_surgery.evidence.deciles import MOST, shown_classes
from hessian_surgery.markup import shortened
from hessian_surgery.report.figure_data import (
    Convergence,
    Responses,
    Spike,
    leading_responses,
    make_convergence,
    make_spikes,
    spike_responses,
    weakest_and_strongest,
)
from hessian_surgery.report.figure_style import BLUE, FORMATS, GREY, VERMILION, new_figure, save_figure
from hessian_surgery.report.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def run_figures(run: Run) -> "dict[str, Figure]":
    """Draw every figure of an operation; keys are file names."""
    before, after = run.findings.heldout.metrics()
    figures = {
        "classes": draw_classes(
            run.classes,
            {"before": (before.per_class, before.interval), "after": (after.per_class, after.interval)},
        ),
    }
    if run.responses.directions:
        figures["responses"] = draw_responses(run.responses)
    if run.findings.folds is None:
        base_sigma = run.result["before"]["calibration"]["sigma"]
        figures["iterations"] = draw_iterations(make_convergence(base_sigma, run.result["iterations"]))
    if run.spikes:
        figures["spectrum"] = draw_spectrum(run.spikes, run.tolerance)
    return figures


def diagnosis_figures(content: dict[str, Any]) -> "dict[str, Figure]":
    """Draw every figure of a diagnosis, the contents of `diagnosis.json`; keys are file names."""
    metrics = content["metrics"]
    figures = {"classes": draw_classes(content["classes"], {"accuracy": (metrics["per_class"], metrics["interval"])})}
    if "eigenvalues" in content:
        tolerance = content["tolerance"]
        spikes = make_spikes(content["eigenvalues"], content["residuals"], tolerance)
        figures["responses"] = draw_responses(spike_responses(content))
        figures["spectrum"] = draw_spectrum(spikes, tolerance)
    return figures


def save_figures(folder: Path, figures: "dict[str, Figure]") -> None:
    """Write each figure as SVG and as PNG, named by its key."""
    for name, figure in figures.items():
        for suffix in FORMATS:
            save_figure(figure, folder / f"{name}.{suffix}")


def draw_classes(
    classes: Sequence[str], series: dict[str, tuple[Sequence[float], Sequence[tuple[float, float]]]]
) -> "Figure":
    """Draw class accuracies with Wilson intervals, weakest class at the top.

    Of many classes, those that changed most, or in a single series both ends.

    Args:
        classes: class names.
        series: accuracies and intervals by label. The first sets the order, the last is in colour.
    """
    order = _drawn([values for values, _ in series.values()])
    figure, (panel,) = new_figure(size=(8.0, max(2.5, 1.2 + 0.26 * len(order))))
    colours = (GREY, BLUE)[-len(series) :]
    for k, ((label, (values, intervals)), colour) in enumerate(zip(series.items(), colours, strict=True)):
        value = 100 * np.array(values)[order]
        ends = 100 * np.array(intervals)[order]
        places = np.arange(len(order)) + 0.28 * (k - (len(series) - 1) / 2)
        errors = np.clip(np.abs(ends - value[:, None]).T, 0, None)
        panel.errorbar(value, places, xerr=errors, fmt="o", ms=4, color=colour, elinewidth=1.6, label=label)
    panel.set_yticks(range(len(order)), plain_labels(classes[j] for j in order))
    panel.invert_yaxis()
    panel.set_xlabel("accuracy (%), 95 % intervals")
    some = "" if len(order) == len(classes) else f" ({len(order)} of {len(classes):,})"
    panel.set_ylabel(f"class{some}")
    if len(series) > 1:
        panel.legend(frameon=False, loc="lower left")
    return figure


def _drawn(series: Sequence[Sequence[float]]) -> list[int]:
    """The classes to draw, in order, from one or two series of accuracies."""
    first, *others = (list(values) for values in series)
    if not others:
        return weakest_and_strongest(first, MOST)
    return sorted(shown_classes(first, others[-1]), key=lambda j: first[j])


def draw_responses(responses: Responses) -> "Figure":
    """Draw responses as a heat map around zero; of many classes, those that respond most."""
    responses = leading_responses(responses)
    rows = responses.directions
    classes = responses.classes
    size = (min(14.0, 3.0 + 0.4 * len(classes)), min(16.0, 2.2 + 0.24 * len(rows)))
    figure, (panel,) = new_figure(size=size)
    shown = panel.imshow(
        np.array(responses.values),
        cmap="PuOr_r",
        vmin=-responses.largest,
        vmax=responses.largest,
        aspect="auto",
        interpolation="nearest",
    )
    panel.grid(visible=False)
    _thin_labels(panel, plain_labels(classes), plain_labels(rows))
    some = f" ({len(classes)} of {responses.of_classes:,})" if responses.of_classes else ""
    panel.set_xlabel(f"class{some}")
    panel.set_ylabel("direction")
    figure.colorbar(shown, ax=panel, label=f"pp of accuracy per 0.01 of {responses.unit}")
    return figure


def draw_iterations(iterations: Convergence) -> "Figure":
    """Draw σ after each iteration, and the steps; crosses and hollow bars were rolled back."""
    figure, (left, right) = new_figure(1, 2, size=(10.0, 4.0))
    left.plot(range(len(iterations.sigma)), iterations.sigma, "o-", color=BLUE, label="kept")
    if iterations.rolled_back:
        left.plot(*zip(*iterations.rolled_back, strict=True), "x", color=VERMILION, ms=8, label="rolled back")
    left.set(xlabel="iteration", ylabel="σ on the calibration images (pp)")
    left.legend(frameon=False)
    faces = [BLUE if accepted else "white" for accepted in iterations.accepted]
    edges = [BLUE if accepted else VERMILION for accepted in iterations.accepted]
    places = range(1, len(iterations.lengths) + 1)
    right.bar(places, iterations.lengths, color=faces, edgecolor=edges, linewidth=1.4)
    right.set(xlabel="iteration", ylabel=iterations.length_label)
    for panel in (left, right):
        panel.locator_params(axis="x", integer=True)
    return figure


def draw_spectrum(spikes: Sequence[Spike], tolerance: float) -> "Figure":
    """Draw spikes, and their residuals against the tolerance; hollow if not converged."""
    figure, (left, right) = new_figure(1, 2, size=(10.0, 4.0))
    for i, spike in enumerate(spikes, 1):
        colour = BLUE if spike.converged else VERMILION
        face = colour if spike.converged else "white"
        low, value, high = spike.drawn_range
        left.errorbar(i, value, yerr=[[value - low], [high - value]], fmt="o", ms=4, color=colour, mfc=face)
        right.plot(i, spike.drawn_residual, "o", ms=4, color=colour, mfc=face)
    lowest = min(spike.eigenvalue for spike in spikes if spike.eigenvalue > 0)
    left.set(xlabel="spike", ylabel="eigenvalue λ", yscale="log", ylim=(lowest / 2, None))
    right.axhline(tolerance, color=VERMILION, linestyle="--", label="tolerance")
    right.set(xlabel="spike", ylabel="relative residual", yscale="log")
    right.legend(frameon=False)
    return figure


def plain_labels(names: Iterable[str]) -> list[str]:
    """Shorten names, and keep matplotlib from reading dollars as mathematics."""
    return [shortened(name, 24).replace("$", r"\$") for name in names]


def _thin_labels(panel: "Axes", columns: list[str], rows: list[str]) -> None:
    """Label at most 40 columns and 60 rows."""
    every_column = -(-len(columns) // 40)
    every_row = -(-len(rows) // 60)
    panel.set_xticks(range(0, len(columns), every_column), columns[::every_column], rotation=50, ha="right")
    panel.set_yticks(range(0, len(rows), every_row), rows[::every_row])
