"""The figures of the page as files in the house style: classes, sensitivities, spectrum, iterations."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hessian_surgery.report.figures import BLUE, FORMATS, GREY, VERMILION, new_figure, save_figure
from hessian_surgery.report.run import Run, direction_names
from hessian_surgery.report.sensitivity import LENGTH, spike_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def run_figures(run: Run) -> "dict[str, Figure]":
    """Every figure of an operation, by the name of its file."""
    before, after = run.findings.heldout.metrics()
    first, records = run.result["iterations"][0], run.result["iterations"]
    figures = {
        "classes": draw_classes(
            run.classes,
            {"before": (before.per_class, before.interval), "after": (after.per_class, after.interval)},
        ),
        "sensitivity": draw_sensitivity(first["sensitivity"], direction_names(run), run.classes, run.unit),
        "iterations": draw_iterations(run.result["before"]["calibration"]["sigma"], records),
    }
    if first["eigenvalues"]:
        figures["spectrum"] = draw_spectrum(first["eigenvalues"], first["residuals"], run.config["tolerance"])
    return figures


def diagnosis_figures(content: dict[str, Any]) -> "dict[str, Figure]":
    """Every figure of a diagnosis, from the contents of `diagnosis.json`, by the name of its file."""
    metrics, spikes = content["metrics"], spike_names(len(content["eigenvalues"]))
    return {
        "classes": draw_classes(content["classes"], {"accuracy": (metrics["per_class"], metrics["interval"])}),
        "sensitivity": draw_sensitivity(content["sensitivity"], spikes, content["classes"]),
        "spectrum": draw_spectrum(content["eigenvalues"], content["residuals"], content["tolerance"]),
    }


def save_figures(folder: Path, figures: "dict[str, Figure]") -> None:
    """Write each figure as SVG and as PNG."""
    for name, figure in figures.items():
        for suffix in FORMATS:
            save_figure(figure, folder / f"{name}.{suffix}")


def draw_classes(
    classes: Sequence[str], series: dict[str, tuple[Sequence[float], Sequence[tuple[float, float]]]]
) -> "Figure":
    """Class accuracies with Wilson's intervals, weakest at the top; the last series is the one that counts."""
    first = next(iter(series.values()))[0]
    order = sorted(range(len(classes)), key=lambda j: first[j])
    figure, (panel,) = new_figure(size=(8.0, max(2.5, 1.2 + 0.26 * len(classes))))
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
    panel.set_ylabel("class")
    if len(series) > 1:
        panel.legend(frameon=False, loc="lower left")
    return figure


def draw_sensitivity(
    matrix: Sequence[Sequence[float]], rows: Sequence[str], classes: Sequence[str], unit: str = LENGTH
) -> "Figure":
    """S as a heat map around zero; `unit` is what its rows count along."""
    values = np.array(matrix)
    size = (min(14.0, 3.0 + 0.4 * len(classes)), min(16.0, 2.2 + 0.24 * len(rows)))
    figure, (panel,) = new_figure(size=size)
    largest = float(np.abs(values).max()) or 1.0
    shown = panel.imshow(values, cmap="PuOr_r", vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest")
    panel.grid(visible=False)
    _thinned(panel, plain_labels(classes), plain_labels(rows))
    panel.set_xlabel("class")
    panel.set_ylabel("direction")
    figure.colorbar(shown, ax=panel, label=f"pp of accuracy per 0.01 of {unit}")
    return figure


def draw_iterations(base: float, records: Sequence[dict[str, Any]]) -> "Figure":
    """σ after each iteration, and amplitudes; rolled-back ones are crosses and hollow bars."""
    figure, (left, right) = new_figure(1, 2, size=(10.0, 4.0))
    steps = np.arange(len(records) + 1)
    left.plot(steps, [100 * base, *(100 * r["sigma"] for r in records)], "o-", color=BLUE, label="kept")
    undone = [(r["iteration"], 100 * r["candidate_sigma"]) for r in records if not r["accepted"] and r["alpha_max"] > 0]
    if undone:
        left.plot(*zip(*undone, strict=True), "x", color=VERMILION, ms=8, label="rolled back")
    left.set(xlabel="iteration", ylabel="σ on the calibration images (pp)")
    left.legend(frameon=False)
    lengths = [r["alpha_max"] for r in records]
    faces = [BLUE if r["accepted"] else "white" for r in records]
    edges = [BLUE if r["accepted"] else VERMILION for r in records]
    right.bar(steps[1:], lengths, color=faces, edgecolor=edges, linewidth=1.4)
    right.set(xlabel="iteration", ylabel="amplitude")
    for panel in (left, right):
        panel.locator_params(axis="x", integer=True)
    return figure


def draw_spectrum(eigenvalues: Sequence[float], residuals: Sequence[float], tolerance: float) -> "Figure":
    """Spikes, and their residuals against the tolerance."""
    figure, (left, right) = new_figure(1, 2, size=(10.0, 4.0))
    places = np.arange(1, len(eigenvalues) + 1)
    errors = np.array(eigenvalues) * np.array(residuals)
    left.errorbar(places, eigenvalues, yerr=errors, fmt="o", ms=4, color=BLUE)
    left.set(xlabel="spike", ylabel="eigenvalue λ", yscale="log")
    right.plot(places, np.maximum(residuals, 1e-16), "o", ms=4, color=BLUE)
    right.axhline(tolerance, color=VERMILION, linestyle="--", label="tolerance")
    right.set(xlabel="spike", ylabel="relative residual", yscale="log")
    right.legend(frameon=False)
    return figure


def plain_labels(names: Iterable[str]) -> list[str]:
    """Names on one line, short, in which a dollar is a dollar."""
    joined = (" ".join(name.split()) for name in names)
    return [(name if len(name) <= 24 else name[:23] + "…").replace("$", r"\$") for name in joined]


def _thinned(panel: "Axes", columns: list[str], rows: list[str]) -> None:
    """Labels at some of many columns and rows."""
    wide, high = -(-len(columns) // 40), -(-len(rows) // 60)
    panel.set_xticks(range(0, len(columns), wide), columns[::wide], rotation=50, ha="right")
    panel.set_yticks(range(0, len(rows), high), rows[::high])
