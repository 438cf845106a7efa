"""What items read from runs of the loop: changes with intervals, and classes to watch."""

import statistics
from collections.abc import Sequence
from typing import Any, TypeAlias

from scipy import stats

from hessian_surgery.evidence.promises import change_interval
from hessian_surgery.reproduce.row import Row, change_row, shown_row

Run: TypeAlias = dict[str, Any]

PARTS = ("before", "after", "calibration_before", "calibration_after")
# What an item's JSON keeps of each iteration.
KEPT = (
    "iteration",
    "phase",
    "accepted",
    "alpha_max",
    "eigenvalues",
    "candidate_sigma",
    "max_drop",
    "sigma",
    "accuracy",
    "per_class",
    "deflation",
)
NETWORK = "another network: theirs was pretrained on ImageNet, ours is trained from scratch"
QUANTILE = 1.96


def short_run(run: Run, kept: Sequence[str] = KEPT) -> Run:
    """A run of the loop without what no row shows: classes' intervals, S, coefficients."""
    parts = {part: {name: own for name, own in run[part].items() if name != "interval"} for part in PARTS}
    return run | parts | {"iterations": [{name: record[name] for name in kept} for record in run["iterations"]]}


def percent(runs: Sequence[Run], part: str, figure: str) -> list[float]:
    """A figure of each run, such as `after` and `sigma`, in percent or pp."""
    return [100 * run[part][figure] for run in runs]


def class_percent(runs: Sequence[Run], part: str, name: str) -> list[float]:
    """The accuracy of one class in each run, in percent."""
    return [100 * run[part]["per_class"][run["classes"].index(name)] for run in runs]


def changes(runs: Sequence[Run], figure: str) -> tuple[list[float], list[tuple[float, float]]]:
    """The change of a figure on held-out images in each run, and its intervals, in pp."""
    found = [run["changes"][figure] for run in runs]
    return [100 * own["difference"] for own in found], [_pp(own["interval"]) for own in found]


def class_changes(runs: Sequence[Run], name: str) -> tuple[list[float], list[tuple[float, float]]]:
    """The change of one class's accuracy on held-out images, likewise."""
    differences = []
    intervals = []
    for run in runs:
        both, lost, gained, neither = run["pairs"][run["classes"].index(name)]
        images = both + lost + gained + neither
        differences.append(100 * (gained - lost) / images)
        intervals.append(_pp(change_interval(gained, lost, images, QUANTILE)))
    return differences, intervals


def sigma_rows(runs: Sequence[Run], before: float, after: float, change: float, what: str = "") -> list[Row]:
    """σ before and after beside the paper's, and its change, which is judged."""
    return [
        shown_row(f"{what}σ before", "pp", before, percent(runs, "before", "sigma"), NETWORK),
        shown_row(f"{what}σ after", "pp", after, percent(runs, "after", "sigma"), NETWORK),
        change_row(f"{what}Δσ, sampling noise removed", "pp", change, *changes(runs, "sigma")),
    ]


def watched(runs: Sequence[Run], named: Sequence[str]) -> list[str]:
    """The classes that the paper names, if the data have them; else the two weakest at the start.

    Weakest is by the calibration images, averaged over runs.
    """
    classes = runs[0]["classes"]
    known = {name.casefold(): name for name in classes}
    if all(name in known for name in named):
        return [known[name] for name in named]
    mean = {name: statistics.fmean(class_percent(runs, "calibration_before", name)) for name in classes}
    return sorted(classes, key=lambda name: mean[name])[: len(named)]


def rollbacks(run: Run) -> int:
    """How many iterations were rolled back."""
    return sum(not record["accepted"] for record in run["iterations"])


def mean_over_splits(values: Sequence[float]) -> tuple[float, float] | None:
    """Student's 95 % interval of the mean over splits; None with a single one.

    The splits halve the same images, so they are not independent: it is a little too narrow.
    """
    if len(values) < 2:
        return None
    mean = statistics.fmean(values)
    half = float(stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return mean - half, mean + half


def _pp(interval: Sequence[float]) -> tuple[float, float]:
    return 100 * interval[0], 100 * interval[1]
