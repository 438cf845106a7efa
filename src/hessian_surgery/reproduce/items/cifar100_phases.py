"""Table 10: sequential deflated surgery on CIFAR-100, phase by phase, on calibration images."""

import itertools
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hessian_surgery.paper.presets import paper_config
from hessian_surgery.report.figure_style import BLUE, GREY, VERMILION, new_figure
from hessian_surgery.reproduce.item import Item, Measured
from hessian_surgery.reproduce.loop_rows import NETWORK, Run, mean_over_splits, short_run
from hessian_surgery.reproduce.loop_runs import loop_run
from hessian_surgery.reproduce.row import Row, claim_row, shown_row
from hessian_surgery.reproduce.workbench import Workbench

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Table 10: λ_max, α_max, accuracy, σ, and its change from the start, of each phase.
START = {"accuracy": 60.3, "sigma": 16.91}
PAPER = (
    {"leading": 442.0, "alpha_max": 0.029, "accuracy": 60.2, "sigma": 16.40, "change": -0.51},
    {"leading": 83.9, "alpha_max": 0.067, "accuracy": 60.9, "sigma": 16.49, "change": -0.42},
    {"leading": 24.1, "alpha_max": 0.125, "accuracy": 60.8, "sigma": 15.86, "change": -1.06},
)
LABELS = {"leading": ("λ_max", ""), "alpha_max": ("α_max", ""), "accuracy": ("accuracy", "%"), "sigma": ("σ", "pp")}
# Section 8.3: the largest overlap between spikes of different phases.
OVERLAP = 4e-5
KEPT = ("phase", "accepted", "alpha_max", "eigenvalues", "accuracy", "sigma", "deflation")


def measure(bench: Workbench, split: int) -> Measured:
    """The run in three phases."""
    return short_run(loop_run(bench, split, paper_config("cifar100")), KEPT)


def phases(run: Run) -> list[dict[str, Any]]:
    """Each phase: λ_max and α_max at its start, accuracy and σ (percent, pp) at its end."""
    start = 100 * run["calibration_before"]["sigma"]
    found = []
    for number in range(1, run["iterations"][-1]["phase"] + 1):
        records = [record for record in run["iterations"] if record["phase"] == number]
        sigma = 100 * records[-1]["sigma"]
        found.append(
            {
                "leading": records[0]["eigenvalues"][0],
                "alpha_max": records[0]["alpha_max"],
                "spikes": len(records[-1]["eigenvalues"]),
                "accuracy": 100 * records[-1]["accuracy"],
                "sigma": sigma,
                "change": sigma - start,
                "overlap": max((record["deflation"] or {}).get("overlap", 0.0) for record in records),
            }
        )
    return found


def rows(measured: dict[str, Sequence[Measured]]) -> list[Row]:
    """Table 10 beside ours, and section 8.3's claims."""
    runs = measured["cifar100"]
    ends = [phases(run) for run in runs]
    start = [
        shown_row(f"start: {name}", unit, START[key], [100 * run["calibration_before"][key] for run in runs], NETWORK)
        for key, (name, unit) in LABELS.items()
        if key in START
    ]
    table = [row for number in range(len(PAPER)) for row in _phase_rows(ends, number)]
    return [*start, *table, *_claims(runs, ends), overlap_row(ends)]


def _phase_rows(ends: Sequence[list[dict[str, Any]]], number: int) -> list[Row]:
    own = [phase[number] for phase in ends if number < len(phase)]
    if not own:
        return []
    paper = PAPER[number]
    first = number * 15 + 1
    label = f"phase {number + 1} (spikes {first}–{first + 14})"
    shown = [
        shown_row(f"{label}: {name}", unit, paper[key], [found[key] for found in own], NETWORK)
        for key, (name, unit) in LABELS.items()
    ]
    changes = [found["change"] for found in own]
    return [*shown, _falls(f"{label}: Δσ from the start", paper["change"], changes)]


def _falls(label: str, paper: float, ours: Sequence[float]) -> Row:
    """A change of σ on the images that steer the loop, which must be below 0 over splits."""
    interval = mean_over_splits(ours)
    holds = interval is not None and interval[1] < 0
    return claim_row(label, "pp", paper, ours, holds, "below 0, with its interval over splits", interval)


def overlap_row(ends: Sequence[list[dict[str, Any]]]) -> Row:
    """Are the spikes of each phase new?"""
    ours = [max(found["overlap"] for found in phase) for phase in ends]
    rule = f"each phase finds new directions: below {OVERLAP:.0e} in every split"
    return claim_row("largest overlap with earlier phases' spikes", "", OVERLAP, ours, max(ours) < OVERLAP, rule)


def _claims(runs: Sequence[Run], ends: Sequence[list[dict[str, Any]]]) -> list[Row]:
    """The order of the phases, and what each contributes."""
    whole = [phase for phase in ends if len(phase) >= len(PAPER)] or ends
    best = [min(range(len(phase)), key=lambda i: phase[i]["sigma"]) + 1 for phase in whole]
    falling = [all(a["leading"] > b["leading"] for a, b in itertools.pairwise(phase)) for phase in whole]
    ratio = [phase[-1]["leading"] / phase[0]["leading"] for phase in whole]
    start = [100 * run["calibration_before"]["accuracy"] for run in runs]
    first = [phase[0]["accuracy"] - own for own, phase in zip(start, ends, strict=True)]
    later = [phase[-1]["sigma"] - phase[0]["sigma"] for phase in whole]
    return [
        claim_row("phase with the lowest σ", "", 3, best, set(best) == {len(PAPER)}, "phase 3 in every split"),
        claim_row(
            "λ_max of the last phase over that of the first",
            "",
            PAPER[-1]["leading"] / PAPER[0]["leading"],
            ratio,
            all(falling),
            "λ_max falls from phase to phase in every split",
        ),
        claim_row(
            "phase 1: change of accuracy",
            "pp",
            -0.1,
            first,
            -1.0 < statistics.fmean(first) < 0,
            "a slight drop: on average over splits below 0 and above −1 pp",
        ),
        _falls("phases 2–3 after phase 1: Δσ", PAPER[-1]["sigma"] - PAPER[0]["sigma"], later),
    ]


def draw(measured: dict[str, Sequence[Measured]]) -> "Figure":
    """Draw σ after each phase and λ_max of each, beside the paper's."""
    runs = measured["cifar100"]
    figure, (left, right) = new_figure(1, 2, size=(10, 4.4))
    for place, run in enumerate(runs):
        found = phases(run)
        numbers = range(1, len(found) + 1)
        label = None if place else "ours, each split"
        sigmas = [100 * run["calibration_before"]["sigma"], *(phase["sigma"] for phase in found)]
        left.plot(range(len(sigmas)), sigmas, "o-", color=BLUE, alpha=0.6, label=label)
        right.semilogy(numbers, [phase["leading"] for phase in found], "o-", color=BLUE, alpha=0.6, label=label)
    paper = [START["sigma"], *(phase["sigma"] for phase in PAPER)]
    left.plot(range(len(paper)), paper, "x--", color=VERMILION, label="the paper")
    right.semilogy(range(1, 4), [phase["leading"] for phase in PAPER], "x--", color=VERMILION, label="the paper")
    left.set(title="σ on calibration images", xlabel="phase", ylabel="pp", xticks=range(len(paper)))
    right.set(title="λ_max at the phase's start", xlabel="phase", xticks=range(1, len(paper)))
    left.axhline(paper[0], color=GREY, linewidth=0.8, linestyle=":")
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=9)
    return figure


ITEM = Item("cifar100-phases", ("cifar100",), measure, rows, draw, splits=3)
