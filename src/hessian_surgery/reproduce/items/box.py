"""Appendix B: a bound on each spike's coefficient (eq. 11) against one ball for all, on skin."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hessian_surgery.paper.presets import paper_config
from hessian_surgery.report.figure_style import BLUE, GREY, VERMILION, new_figure
from hessian_surgery.reproduce.exponents import SKIN
from hessian_surgery.reproduce.item import Item, Measured
from hessian_surgery.reproduce.loop_rows import Run, changes, mean_over_splits, percent, rollbacks, short_run
from hessian_surgery.reproduce.loop_runs import loop_run
from hessian_surgery.reproduce.row import Row, claim_row, mean_interval, shown_row
from hessian_surgery.reproduce.workbench import Workbench
from hessian_surgery.types import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Appendix B: the first and the last eigenvalue.
LEADING = 600.0
LAST = 20.0
DECADE = 10.0
KEPT = ("accepted", "alpha_max", "eigenvalues", "coefficients", "sigma")


def measure(bench: Workbench, split: int) -> Measured:
    """A run with each bound; all else is the same."""
    config = paper_config("isic")
    return {
        "box": short_run(loop_run(bench, split, config), KEPT),
        "ball": short_run(loop_run(bench, split, replace(config, bound="ball")), KEPT),
    }


def half_widths(record: dict[str, Any]) -> Array:
    """√(λ_min/λ_i): how far each coefficient may go, in units of α_max; 1 in the ball."""
    values = np.array(record["eigenvalues"])
    return np.sqrt(values.min() / values)


def steep_share(record: dict[str, Any]) -> float:
    """The share of the spikes above the median λ in the squared length of the step, in percent."""
    values = np.array(record["eigenvalues"])
    squares = np.array(record["coefficients"]) ** 2
    whole = squares.sum()
    return float(100 * squares[values > np.median(values)].sum() / whole) if whole > 0 else 0.0


def rows(measured: dict[str, Sequence[Measured]]) -> list[Row]:
    """The widths, and what the two bounds do."""
    box, ball = ([own[bound] for own in measured["skin"]] for bound in ("box", "ball"))
    first = [run["iterations"][0] for run in box]
    return [*_spectrum_rows(first), *_width_rows(first), *_run_rows(box, ball)]


def _spectrum_rows(first: Sequence[dict[str, Any]]) -> list[Row]:
    leading = [record["eigenvalues"][0] for record in first]
    last = [record["eigenvalues"][-1] for record in first]
    ratio = [one / other for one, other in zip(leading, last, strict=True)]
    rule = "they span a decade: the first over the last is at least 10 in every split"
    return [
        shown_row("λ of the first spike", "", LEADING, leading, SKIN),
        shown_row("λ of the last spike", "", LAST, last, SKIN),
        claim_row("λ of the first spike over the last", "", LEADING / LAST, ratio, min(ratio) >= DECADE, rule),
    ]


def _width_rows(first: Sequence[dict[str, Any]]) -> list[Row]:
    """Is the box wider than the ball anywhere?"""
    widths = [half_widths(record) for record in first]
    widest = [float(own.max()) for own in widths]
    narrowest = [float(own.min()) for own in widths]
    corner = [float(np.linalg.norm(own)) for own in widths]
    wider = "the box is more permissive for low-curvature spikes: a half-width is above the α_max of the ball"
    narrower = "the box is more conservative for high-curvature spikes: a half-width is below α_max in every split"
    why = "several spikes together may go further than in the ball if this is above 1; the paper says nothing of it"
    return [
        claim_row("widest half-width over α_max", "", None, widest, min(widest) > 1 + 1e-9, wider),
        claim_row("narrowest half-width over α_max", "", None, narrowest, max(narrowest) < 1, narrower),
        shown_row("length of the box's corner over α_max", "", None, corner, why),
    ]


def _run_rows(box: Sequence[Run], ball: Sequence[Run]) -> list[Row]:
    """Is the box needed on skin, and does the ball under-use high-curvature spikes?"""
    shown = [
        shown_row(f"{name}: Δσ, sampling noise removed", "pp", None, own, SKIN, mean_interval(intervals))
        for name, (own, intervals) in (("box", changes(box, "sigma")), ("ball", changes(ball, "sigma")))
    ]
    differences = _minus(percent(box, "after", "sigma"), percent(ball, "after", "sigma"))
    interval = mean_over_splits(differences)
    backs = _minus([rollbacks(run) for run in ball], [rollbacks(run) for run in box])
    steep = _minus(*([steep_share(run["iterations"][0]) for run in runs] for runs in (box, ball)))
    return [
        *shown,
        claim_row(
            "σ after: box minus ball",
            "pp",
            None,
            differences,
            interval is not None and interval[1] < 0,
            "the box is needed on skin: below 0, with its interval over splits",
            interval,
        ),
        shown_row("rollbacks: ball minus box", "", None, backs, SKIN),
        claim_row(
            "share of high-curvature spikes in the first step: box minus ball",
            "pp",
            None,
            steep,
            min(steep) > 0,
            "the ball under-uses spikes above the median λ: the box gives them more, in every split",
        ),
    ]


def _minus(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [one - other for one, other in zip(first, second, strict=True)]


def draw(measured: dict[str, Sequence[Measured]]) -> "Figure":
    """Draw the half-widths by spike, and σ by iteration with each bound."""
    figure, (left, right) = new_figure(1, 2, size=(10, 4.4))
    for place, own in enumerate(measured["skin"]):
        widths = half_widths(own["box"]["iterations"][0])
        ranks = range(1, len(widths) + 1)
        left.plot(ranks, widths, "o-", color=BLUE, alpha=0.5, label=None if place else "box")
        for bound, colour in (("box", BLUE), ("ball", VERMILION)):
            sigmas = [own[bound]["calibration_before"]["sigma"]]
            sigmas += [record["sigma"] for record in own[bound]["iterations"]]
            label = None if place else bound
            right.plot([100 * value for value in sigmas], "o-", color=colour, alpha=0.5, label=label)
    left.axhline(1, color=GREY, linestyle="--", label="ball")
    left.set(
        title="How far a coefficient may go", xlabel="rank of the spike", ylabel="in units of α_max", ylim=(0, 1.1)
    )
    right.set(title="σ on calibration images", xlabel="iteration", ylabel="pp")
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=9)
    return figure


ITEM = Item("box", ("skin",), measure, rows, draw)
