"""Future work of the paper: deflated surgery on CIFAR-100 until 99 spikes are treated.

Seven phases of 15: the last one goes six beyond the 99. Ritz pairs of any sign are taken, as there
are fewer than 15 positive ones among 20.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hessian_surgery.paper.presets import paper_config
from hessian_surgery.report.figure_style import BLUE, GREY, VERMILION, new_figure
from hessian_surgery.reproduce.item import Item, Measured
from hessian_surgery.reproduce.items.cifar100_phases import KEPT, LABELS, overlap_row, phases
from hessian_surgery.reproduce.loop_rows import changes, percent, short_run
from hessian_surgery.reproduce.loop_runs import loop_run
from hessian_surgery.reproduce.row import Row, change_row, claim_row, mean_interval, shown_row
from hessian_surgery.reproduce.workbench import Workbench

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPIKES = 99
PHASES = 7
# The paper stopped after this phase.
REACHED = 3
NONE = "the paper ran out of memory before this phase"


def measure(bench: Workbench, split: int) -> Measured:
    """The paper's three phases, and seven."""
    config = paper_config("cifar100")
    more = replace(config, phases=PHASES, search=replace(config.search, signs="all"))
    return {
        "three": short_run(loop_run(bench, split, config), KEPT),
        "seven": short_run(loop_run(bench, split, more), KEPT),
    }


def rows(measured: dict[str, Sequence[Measured]]) -> list[Row]:
    """Every phase, and whether more spikes help."""
    seven = [own["seven"] for own in measured["cifar100"]]
    three = [own["three"] for own in measured["cifar100"]]
    ends = [phases(run) for run in seven]
    table = [
        shown_row(f"phase {i + 1}: {name}", unit, None, [own[i][key] for own in ends if i < len(own)], NONE)
        for i in range(min(len(own) for own in ends))
        for key, (name, unit) in LABELS.items()
    ]
    spikes = [sum(found["spikes"] for found in own) for own in ends]
    reached = claim_row("spikes treated", "", SPIKES, spikes, min(spikes) >= SPIKES, f"at least {SPIKES} are found")
    fewer, fewer_intervals = changes(three, "sigma")
    more, intervals = changes(seven, "sigma")
    return [
        *table,
        reached,
        overlap_row(ends),
        shown_row("σ after, held-out", "pp", None, percent(seven, "after", "sigma"), NONE),
        change_row("45 spikes: Δσ on held-out images, sampling noise removed", "pp", -0.26, fewer, fewer_intervals),
        claim_row(
            "all spikes: Δσ on held-out images, sampling noise removed",
            "pp",
            None,
            more,
            mean_interval(intervals)[1] < 0,
            "it scales beyond 45 spikes: σ falls, and the interval excludes 0",
            mean_interval(intervals),
        ),
        _returns(seven),
    ]


def _returns(runs: Sequence[Measured]) -> Row:
    """Do phases beyond the third gain less than those before?"""
    early = []
    late = []
    for run in runs:
        found = phases(run)
        sigmas = [100 * run["calibration_before"]["sigma"], *(own["sigma"] for own in found)]
        last = min(REACHED, len(found))
        early.append((sigmas[0] - sigmas[last]) / last)
        if len(found) > last:
            late.append((sigmas[last] - sigmas[-1]) / (len(found) - last))
    if not late:
        return shown_row("fall of σ for each phase, phases 1–3", "pp", 0.35, early, "no phase came after the third")
    rule = "decreasing returns: each phase after the third lowers σ by less than each of the first three, on average"
    holds = statistics.fmean(late) < statistics.fmean(early)
    ours = [own - first for own, first in zip(late, early, strict=False)]
    return claim_row("fall of σ for each phase: after the third minus phases 1–3", "pp", None, ours, holds, rule)


def draw(measured: dict[str, Sequence[Measured]]) -> "Figure":
    """Draw σ and λ_max by the number of spikes treated."""
    figure, (left, right) = new_figure(1, 2, size=(10, 4.4))
    for own in measured["cifar100"]:
        run = own["seven"]
        found = phases(run)
        spikes = [0]
        for phase in found:
            spikes.append(spikes[-1] + phase["spikes"])
        start = 100 * run["calibration_before"]["sigma"]
        left.plot(spikes, [start, *(phase["sigma"] for phase in found)], "o-", color=BLUE, label="calibration images")
        ends = (100 * run["before"]["sigma"], 100 * run["after"]["sigma"])
        left.plot((0, spikes[-1]), ends, "s", color=VERMILION, label="held-out images")
        right.semilogy(spikes[1:], [phase["leading"] for phase in found], "o-", color=BLUE)
    left.set(title="σ", xlabel="spikes treated", ylabel="pp")
    right.set(title="λ_max at the phase's start", xlabel="spikes treated by its end")
    for axes in (left, right):
        axes.axvline(SPIKES, color=GREY, linestyle=":")
    left.legend(frameon=False, fontsize=9)
    return figure


ITEM = Item("all-99", ("cifar100",), measure, rows, draw, splits=3)
