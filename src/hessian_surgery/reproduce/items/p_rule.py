"""Table 3, tested: is the exponent p that the rule recommends the best of four?"""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hessian_surgery.operation.goal import Target
from hessian_surgery.paper.plan import error_ratio, recommended_exponent
from hessian_surgery.report.figure_style import BLUE, GREY, VERMILION, new_figure
from hessian_surgery.reproduce.exponents import (
    EXPONENTS,
    NAMES,
    SKIN,
    SYMBOLS,
    ByExponent,
    ahead,
    beats,
    by_exponent,
    exponent_runs,
    held_out,
)
from hessian_surgery.reproduce.item import Item, Measured
from hessian_surgery.reproduce.loop_rows import NETWORK, Run, mean_over_splits
from hessian_surgery.reproduce.row import Row, claim_row, shown_row
from hessian_surgery.reproduce.workbench import Workbench

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# e_max / e_min in the paper (section 6.3); table 3 divides at 5.
RATIOS = {"cifar10": 4.4, "skin": 6.4}
MILD = 5.0
# Of each target: its figure, its name, its unit, and whether less is better.
TARGETS: dict[Target, tuple[str, str, str, bool]] = {
    "sigma": ("sigma", "lowest σ", "pp", True),
    "worst": ("worst", "best worst class", "pp", False),
}


def measure(bench: Workbench, split: int) -> Measured:
    """The figures of a run with each p."""
    runs = exponent_runs(bench, split, EXPONENTS)
    return {p: {part: run[part] for part in ("calibration_before", "after")} for p, run in runs.items()}


def rows(measured: dict[str, Sequence[Measured]]) -> list[Row]:
    """For each data set and target: the rule's p against the others, paired over splits."""
    found = []
    for dataset, splits in measured.items():
        runs = by_exponent(splits)
        found.append(_ratio_row(dataset, runs["1"]))
        for target in TARGETS:
            found += _target_rows(dataset, runs, target)
    return [*found, _uniform_row(by_exponent(measured["cifar10"]))]


def ratios(runs: Sequence[Run]) -> list[float]:
    """e_max / e_min of the starting network on each split's calibration images."""
    parts = [run["calibration_before"] for run in runs]
    return [error_ratio(np.array(own["per_class"]), np.array(own["count"])) for own in parts]


def rules_exponent(runs: Sequence[Run], target: Target) -> str:
    """The p that table 3 recommends for the starting network, by the mean over splits."""
    parts = [run["calibration_before"] for run in runs]
    accuracy = np.mean([own["per_class"] for own in parts], axis=0)
    found = recommended_exponent(accuracy, np.array(parts[0]["count"]), target)
    return str(found if found == 0.5 else int(found))


def _ratio_row(dataset: str, runs: Sequence[Run]) -> Row:
    paper = RATIOS[dataset]
    ours = ratios(runs)
    side = "below" if paper < MILD else "at least"
    same = (statistics.fmean(ours) < MILD) == (paper < MILD)
    return claim_row(f"{NAMES[dataset]}: e_max / e_min", "", paper, ours, same, f"{side} {MILD:.0f}, as in the paper")


def _target_rows(dataset: str, runs: ByExponent, target: Target) -> list[Row]:
    figure, goal, unit, lower = TARGETS[target]
    values = held_out(figure)
    p = rules_exponent(runs["1"], target)
    others = [other for other in runs if other != p]
    label = f"{NAMES[dataset]}, {goal}"
    why = SKIN if dataset == "skin" else NETWORK
    shown = [
        shown_row(f"{label}: at p = {SYMBOLS[own]}", "pp" if lower else "%", None, values(runs[own]), why)
        for own in runs
    ]
    differences = {other: ahead(runs, p, other, values) for other in others}
    side = "below" if lower else "above"
    each = [
        claim_row(
            f"{label}: p = {SYMBOLS[p]} minus p = {SYMBOLS[other]}",
            unit,
            None,
            own,
            beats(own, lower),
            f"the rule's p is better: the difference is {side} 0, with its interval over splits",
            mean_over_splits(own),
        )
        for other, own in differences.items()
    ]
    wins = all(beats(own, lower) for own in differences.values())
    best = [float(own) for own in best_exponents(runs, figure, lower)]
    rule = "table 3's p for our e_max / e_min beats every other p, each by the interval over splits"
    return [claim_row(f"{label}: best p", "", float(p), best, wins, rule), *each, *shown]


def best_exponents(runs: ByExponent, figure: str, lower: bool) -> list[str]:
    """The best p of each split; the first of equals."""
    table = {p: held_out(figure)(found) for p, found in runs.items()}
    pick = min if lower else max
    return [pick(table, key=lambda p: table[p][split]) for split in range(len(runs["1"]))]


def _uniform_row(runs: ByExponent) -> Row:
    """Section 6.3: p = 0 tends to increase accuracy, and does not emphasise σ."""
    accuracy = held_out("accuracy")
    sigma = held_out("sigma")
    others = [p for p in runs if p != "0"]
    most = max(statistics.fmean(accuracy(runs[p])) for p in others)
    least = max(statistics.fmean(sigma(runs[p])) for p in others)
    own = accuracy(runs["0"])
    holds = statistics.fmean(own) > most and statistics.fmean(sigma(runs["0"])) > least
    rule = "p = 0 ends with the highest accuracy and the highest σ of all p, on average over splits"
    return claim_row(
        "CIFAR-10, p = 0: accuracy minus the best other p's", "pp", None, [a - most for a in own], holds, rule
    )


def draw(measured: dict[str, Sequence[Measured]]) -> "Figure":
    """Draw σ and the worst class with each p; the rule's p is marked."""
    figure, axes = new_figure(2, 2, size=(10, 7.5))
    places = np.arange(len(EXPONENTS))
    panels = [(dataset, target) for dataset in measured for target in TARGETS]
    for own, (dataset, target) in zip(axes, panels, strict=True):
        runs = by_exponent(measured[dataset])
        name, _, _, lower = TARGETS[target]
        after = np.array([held_out(name)(runs[p]) for p in runs])
        own.plot(places, after, color=GREY, alpha=0.6)
        own.plot(places, after.mean(axis=1), "o-", color=BLUE, label="mean over splits")
        own.axvline(list(runs).index(rules_exponent(runs["1"], target)), color=VERMILION, linestyle="--", label="rule")
        own.set_xticks(places, [f"p = {SYMBOLS[p]}" for p in runs])
        own.set(title=f"{NAMES[dataset]}, {TARGETS[target][1]}", ylabel="σ, pp" if lower else "worst class, %")
        own.legend(frameon=False, fontsize=9)
    return figure


ITEM = Item("p-rule", ("cifar10", "skin"), measure, rows, draw)
