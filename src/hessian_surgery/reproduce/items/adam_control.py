"""Appendix C: Adam-style amplitude control against γ-decay, on the same splits."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hessian_surgery.paper.amplitude import AdamControl, Signal
from hessian_surgery.paper.presets import paper_config
from hessian_surgery.report.figure_style import BLUE, VERMILION, new_figure
from hessian_surgery.reproduce.item import Item, Measured
from hessian_surgery.reproduce.loop_rows import (
    NETWORK,
    Run,
    changes,
    class_percent,
    mean_over_splits,
    percent,
    rollbacks,
    short_run,
    watched,
)
from hessian_surgery.reproduce.loop_runs import loop_run
from hessian_surgery.reproduce.row import Row, change_row, claim_row, shown_row
from hessian_surgery.reproduce.workbench import Workbench

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAIR = ("cat", "dog")
# Tables 4, 5, 7 and 8: accuracy, σ, its change, cat, dog, rollbacks.
PAPER = {
    "Adam": (85.1, 5.78, -2.79, 76.1, 73.9, 1.0),
    "γ-decay": (84.7, 5.52, -3.05, 76.1, 74.9, 2.0),
}
COLOURS = {"Adam": BLUE, "γ-decay": VERMILION}
# "Slightly different": σ differs by less than this, in pp, as a rollback's threshold does.
SLIGHT = 0.5
# A rise of α_max by this share of its start counts as recovery.
RECOVERED = 10.0
GAMMA = 0.7
KEPT = ("accepted", "alpha_max", "sigma")


def measure(bench: Workbench, split: int) -> Measured:
    """A run with each control."""
    return {
        "Adam": short_run(loop_run(bench, split, paper_config()), KEPT),
        "γ-decay": short_run(loop_run(bench, split, paper_config(control="gamma")), KEPT),
    }


def rows(measured: dict[str, Sequence[Measured]]) -> list[Row]:
    """Both controls beside the paper's, and appendix C's claims."""
    runs = {name: [own[name] for own in measured["cifar10"]] for name in PAPER}
    table = [row for name in PAPER for row in _table(name, runs[name])]
    return [*table, _difference(runs), _recovery(runs["Adam"]), _limit()]


def _table(name: str, runs: Sequence[Run]) -> list[Row]:
    accuracy, sigma, change, *classes, back = PAPER[name]
    singles = [
        shown_row(f"{name}: {own}", "%", paper, class_percent(runs, "after", own), NETWORK)
        for own, paper in zip(watched(runs, PAIR), classes, strict=True)
    ]
    return [
        shown_row(f"{name}: accuracy", "%", accuracy, percent(runs, "after", "accuracy"), NETWORK),
        shown_row(f"{name}: σ", "pp", sigma, percent(runs, "after", "sigma"), NETWORK),
        change_row(f"{name}: Δσ, sampling noise removed", "pp", change, *changes(runs, "sigma")),
        *singles,
        shown_row(f"{name}: rollbacks", "", back, [rollbacks(run) for run in runs], NETWORK),
    ]


def _difference(runs: dict[str, list[Run]]) -> Row:
    adam, gamma = (percent(runs[name], "after", "sigma") for name in PAPER)
    ours = [one - other for one, other in zip(adam, gamma, strict=True)]
    slight = abs(sum(ours) / len(ours)) < SLIGHT
    rule = f"the two end slightly differently: by less than {SLIGHT} pp of σ on average over splits"
    return claim_row("σ: Adam minus γ-decay", "pp", 0.26, ours, slight, rule, mean_over_splits(ours))


def largest_rise(values: Sequence[float]) -> float:
    """How far a value rose above an earlier one at most, in percent of the first."""
    lowest = np.minimum.accumulate(values)
    return float(100 * np.max(np.array(values) - lowest) / values[0])


def _recovery(runs: Sequence[Run]) -> Row:
    """Does α_max rise again after it fell?"""
    amplitudes = [[record["alpha_max"] for record in run["iterations"]] for run in runs]
    fell = [own for own in amplitudes if min(own) < own[0]]
    label = "Adam: largest rise of α_max after a fall, of its start"
    if not fell:
        return shown_row(label, "%", None, [0.0], "α_max never fell, so it could not recover")
    ours = [largest_rise(own) for own in fell]
    holds = all(rise >= RECOVERED for rise in ours)
    rule = f"α_max recovers: in every split in which it fell, it rises by {RECOVERED:.0f} % of its start or more"
    return claim_row(label, "%", None, ours, holds, rule)


def limiting_factors(iterations: int = 3) -> list[float]:
    """α_max over the one before, with β₁ = β₂ = 0 and the same rollback at every iteration."""
    # A horizon of one iteration is what makes both windows 0.
    control = AdamControl(initial=1.0, horizon=1, value=1.0)
    factors = []
    for _ in range(iterations):
        following = control.update(Signal(False, 0.1, 0.12, 0.08))
        factors.append(following.value / control.value)
        control = following
    return factors


def _limit() -> Row:
    ours = limiting_factors()
    rule = (
        "γ-decay is a limiting case: at β₁ = β₂ = 0 and a fixed negative signal, each of three iterations "
        "multiplies α_max by γ; in eq. 7 the signal-to-noise ratio is then −1 at once, and α_max stays at its floor"
    )
    return claim_row("factors of α_max in the limit", "", GAMMA, ours, bool(np.allclose(ours, GAMMA, atol=0.05)), rule)


def draw(measured: dict[str, Sequence[Measured]]) -> "Figure":
    """Draw α_max and σ by iteration, in each split and on average, with both controls."""
    figure, axes = new_figure(1, 2, size=(10, 4.4))
    for name, colour in COLOURS.items():
        runs = [own[name] for own in measured["cifar10"]]
        for panel, key, factor in zip(axes, ("alpha_max", "sigma"), (1, 100), strict=True):
            values = [[factor * record[key] for record in run["iterations"]] for run in runs]
            shortest = min(len(own) for own in values)
            for own in values:
                panel.plot(range(1, len(own) + 1), own, color=colour, alpha=0.25)
            mean = np.mean([own[:shortest] for own in values], axis=0)
            panel.plot(range(1, shortest + 1), mean, "o-", color=colour, label=name)
    for panel, title, unit in zip(axes, ("α_max", "σ on calibration images"), ("", "pp"), strict=True):
        panel.set(title=title, xlabel="iteration", ylabel=unit)
        panel.legend(frameon=False, fontsize=9)
    return figure


ITEM = Item("adam-control", ("cifar10",), measure, rows, draw)
