"""Figures 4 and 5: class accuracies along planned steps, predicted by S and measured."""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hessian_surgery.paper.presets import paper_config
from hessian_surgery.report.figure_style import BLUE, GREY, VERMILION, new_figure
from hessian_surgery.reproduce.item import Item, Measured
from hessian_surgery.reproduce.row import Row, claim_row, shown_row
from hessian_surgery.reproduce.workbench import Workbench
from hessian_surgery.studies.linearization import AMPLITUDES, linearization

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPSILON = 0.01
# Appendix D: c, b, d and R² of y = c + b‖α‖ᵈ. The paper gives no R² for the first.
PAPER: dict[str, tuple[float, float, float, float | None]] = {
    "predicted": (0.0, 1.11, 1.0, None),
    "measured": (1.5e-3, 0.63, 1.0, 0.98),
    "error": (2.5e-3, 0.94, 1.08, 0.99),
    "error_power_law": (0.0, 0.30, 0.74, 0.96),
}
LABELS = {
    "predicted": "predicted norm",
    "measured": "measured norm",
    "error": "error",
    "error_power_law": "error as a power law",
}
# The paper's budget on CIFAR-10, and the longest step of its sweep.
WORKING = 0.02
LONGEST = 5.5e-2
OTHER = "another network"


def measure(bench: Workbench, split: int) -> Measured:
    """The study with the paper's ten steps and its protected classes, those above 85 %."""
    parts = bench.parts(split)
    config = paper_config()
    found = linearization(
        bench.model(),
        parts.training,
        parts.calibration,
        config.search,
        amplitudes=AMPLITUDES[:: bench.number(1, 5)],
        epsilon=EPSILON,
        exponent=float(config.exponent),
        strong_above=config.strong_above,
        seed=split,
    ).as_dict()
    norms = ("norm", "predicted_norm", "measured_norm", "error_norm")
    return {
        "fits": {name: found["fits"][name]["curve"] for name in PAPER},
        "damping": found["fits"]["damping"],
        **{name: [step[name] for step in found["steps"]] for name in norms},
    }


def rows(measured: dict[str, Sequence[Measured]]) -> list[Row]:
    """Every fitted number, and what the paper concludes."""
    found = measured["cifar10"]
    return [*_fits(found), *_lines(found), *_errors(found), *_working(found)]


def fitted(found: Sequence[Measured], fit: str, number: str) -> list[float]:
    """One number of a fit on each split where the fit succeeded."""
    return [one["fits"][fit][number] for one in found if one["fits"][fit] is not None]


def _fits(found: Sequence[Measured]) -> list[Row]:
    numbers = (("intercept", "c"), ("slope", "b"), ("exponent", "d"), ("r_squared", "R²"))
    shown = []
    for fit, papers in PAPER.items():
        for (number, letter), paper in zip(numbers, papers, strict=True):
            ours = fitted(found, fit, number)
            given = (number == "intercept" and paper == 0) or (number == "exponent" and paper == 1)
            if ours and not given:
                shown.append(shown_row(f"{LABELS[fit]}: {letter} of c + b‖α‖ᵈ", "", paper, ours, OTHER))
    return shown


def _claim(label: str, paper: float | None, ours: Sequence[float], holds: bool, rule: str, unit: str = "") -> Row:
    """A claim; one whose fit failed on every split does not hold."""
    return claim_row(label, unit, paper, ours or [0.0], bool(ours) and holds, rule)


def _lines(found: Sequence[Measured]) -> list[Row]:
    straight = fitted(found, "measured", "r_squared")
    floor = fitted(found, "measured", "intercept")
    damping = [one["damping"] for one in found if one["damping"] is not None]
    return [
        _claim(
            "measured norm: R² of a line",
            PAPER["measured"][3],
            straight,
            min(straight, default=0) >= 0.95,
            "the response is linear in ‖α‖: 0.95 or more on every split",
        ),
        _claim(
            "measured norm: intercept of the line",
            PAPER["measured"][0],
            floor,
            min(floor, default=0) > 0,
            "counting images leaves a floor: above 0 on every split",
        ),
        _claim(
            "damping: measured slope over predicted slope",
            0.57,
            damping,
            bool(damping) and statistics.fmean(damping) < 0.785,
            "steps are damped: nearer to 0.57 than to 1, as a mean over splits",
        ),
    ]


def _errors(found: Sequence[Measured]) -> list[Row]:
    powers = fitted(found, "error", "exponent")
    both = [one["fits"] for one in found if one["fits"]["error"] and one["fits"]["error_power_law"]]
    gains = [fits["error"]["r_squared"] - fits["error_power_law"]["r_squared"] for fits in both]
    floors = [
        max(one["error_norm"]) / one["fits"]["error"]["intercept"]
        for one in found
        if one["fits"]["error"] and one["fits"]["error"]["intercept"] > 0
    ]
    return [
        _claim(
            "error: exponent d",
            PAPER["error"][2],
            powers,
            bool(powers) and statistics.fmean(powers) < 1.5,
            "the error grows linearly, not as the square: d is nearer to 1 than to 2, as a mean over splits",
        ),
        _claim(
            "error: R² with a floor less R² of a power law",
            0.99 - 0.96,
            gains,
            min(gains, default=0) > 0,
            "a floor and a power fit better than a power alone, on every split",
        ),
        _claim(
            "largest error over the fitted floor c",
            papers_error(LONGEST) / PAPER["error"][0],
            floors,
            max(floors, default=0) <= 2,
            "figure 4's caption: the prediction holds within the noise floor over the full sweep; at "
            "most twice the floor, on every split (the paper's own fit says 17 times)",
        ),
    ]


def papers_error(norm: float) -> float:
    """The paper's fit of the error, eq. 15."""
    floor, slope, power, _ = PAPER["error"]
    return float(floor + slope * norm**power)


def _working(found: Sequence[Measured]) -> list[Row]:
    ours = [100 * relative_error(one) for one in found]
    return [
        claim_row(
            f"error over predicted change, at the step nearest ‖α‖ = {WORKING:g}",
            "%",
            100 * papers_error(WORKING) / (PAPER["predicted"][1] * WORKING),
            ours,
            max(ours) < 50,
            "the linear regime holds at the paper's budget: the error is below half of the predicted "
            "change, on every split (the paper's own fits say 73 %)",
        )
    ]


def relative_error(one: Any) -> float:
    """The error over the predicted change at the step whose length is nearest to the budget."""
    nearest = int(np.argmin(np.abs(np.array(one["norm"]) - WORKING)))
    predicted = one["predicted_norm"][nearest]
    return float(one["error_norm"][nearest] / predicted) if predicted > 0 else 0.0


def draw(measured: dict[str, Sequence[Measured]]) -> "Figure":
    """Draw the norms and the error by ‖α‖ for all splits, with the paper's fits."""
    found = measured["cifar10"]
    figure, (left, right) = new_figure(1, 2, size=(10, 4.4))
    x = np.geomspace(5e-4, LONGEST, 100)
    for axes, name, fit, colour in (
        (left, "predicted_norm", "predicted", BLUE),
        (left, "measured_norm", "measured", VERMILION),
        (right, "error_norm", "error", BLUE),
    ):
        for i, one in enumerate(found):
            shown = [(norm, size) for norm, size in zip(one["norm"], one[name], strict=True) if norm > 0]
            label = None if i else LABELS[fit]
            axes.plot(*zip(*shown, strict=True), "o", color=colour, markersize=3, alpha=0.6, label=label)
        floor, slope, power, _ = PAPER[fit]
        style = "--" if name == "predicted_norm" else ":"
        axes.plot(x, floor + slope * x**power, style, color=GREY, label=f"the paper's {LABELS[fit]}")
    left.set(title="Change of class accuracies", ylabel="norm of the change (fraction)")
    right.set(title="Error of the linearization", ylabel="norm of the error (fraction)", xscale="log", yscale="log")
    for axes in (left, right):
        axes.set_xlabel("‖α‖")
        axes.legend(frameon=False, fontsize=9)
    return figure


ITEM = Item("linearization", ("cifar10",), measure, rows, draw)
