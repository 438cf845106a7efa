"""Table 4: class accuracies before and after the γ-decay run, on held-out images."""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hessian_surgery.paper.presets import paper_config
from hessian_surgery.report.figure_style import BLUE, GREY, VERMILION, new_figure
from hessian_surgery.reproduce.item import Item, Measured
from hessian_surgery.reproduce.loop_rows import (
    NETWORK,
    Run,
    changes,
    class_changes,
    class_percent,
    percent,
    rollbacks,
    short_run,
    sigma_rows,
    watched,
)
from hessian_surgery.reproduce.loop_runs import loop_run
from hessian_surgery.reproduce.row import Row, change_row, claim_row, mean_interval, shown_row
from hessian_surgery.reproduce.workbench import Workbench

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Table 4: accuracy before, after, and the change.
PAPER = {
    "cat": (68.6, 76.1, 7.5),
    "dog": (69.0, 74.9, 5.9),
    "bird": (81.7, 83.2, 1.5),
    "automobile": (90.7, 92.4, 1.7),
    "truck": (89.5, 88.4, -1.1),
    "frog": (90.6, 89.2, -1.4),
    "airplane": (89.2, 85.9, -3.3),
    "ship": (93.1, 90.0, -3.1),
    "horse": (90.5, 84.0, -6.5),
    "deer": (85.2, 81.7, -3.5),
}
PAIR = ("cat", "dog")
WHO_PAYS = "which other classes gain or pay depends on the network"
# "Negligible": the whole interval is nearer to 0 than this, in pp. The paper states no limit.
NEGLIGIBLE = 1.0


def measure(bench: Workbench, split: int) -> Measured:
    """The γ-decay run."""
    return short_run(loop_run(bench, split, paper_config(control="gamma")))


def rows(measured: dict[str, Sequence[Measured]]) -> list[Row]:
    """Each class, accuracy and σ beside the paper's."""
    runs = measured["cifar10"]
    pair = watched(runs, PAIR)
    order = sorted(runs[0]["classes"], key=lambda name: (name not in pair, -PAPER.get(name, (0, 0, 0))[2]))
    classes = [row for name in order for row in _class_rows(runs, name, name in pair)]
    return [*classes, *_whole_rows(runs), _gainers(runs, pair)]


def _class_rows(runs: Sequence[Run], name: str, judged: bool) -> list[Row]:
    before, after, change = PAPER.get(name, (None, None, None))
    differences, intervals = class_changes(runs, name)
    label = f"{name}: change"
    if judged and change is not None:
        last = change_row(label, "pp", change, differences, intervals)
    else:
        last = shown_row(label, "pp", change, differences, WHO_PAYS, mean_interval(intervals))
    return [
        shown_row(f"{name}: before", "%", before, class_percent(runs, "before", name), NETWORK),
        shown_row(f"{name}: after", "%", after, class_percent(runs, "after", name), NETWORK),
        last,
    ]


def _whole_rows(runs: Sequence[Run]) -> list[Row]:
    accuracy, intervals = changes(runs, "accuracy")
    low, high = mean_interval(intervals)
    relative = [100 * (run["after"]["sigma"] / run["before"]["sigma"] - 1) for run in runs]
    accepted = [len(run["iterations"]) - rollbacks(run) for run in runs]
    return [
        shown_row("accuracy before", "%", 84.9, percent(runs, "before", "accuracy"), NETWORK),
        shown_row("accuracy after", "%", 84.7, percent(runs, "after", "accuracy"), NETWORK),
        claim_row(
            "accuracy: change",
            "pp",
            -0.2,
            accuracy,
            max(abs(low), abs(high)) < NEGLIGIBLE,
            f"negligible: the whole interval is within ±{NEGLIGIBLE:.0f} pp",
            (low, high),
        ),
        *sigma_rows(runs, 8.57, 5.52, -3.05),
        shown_row("σ: relative change", "%", -35.6, relative, NETWORK),
        shown_row("accepted iterations of 10", "", 8, accepted, NETWORK),
    ]


def _gainers(runs: Sequence[Run], pair: Sequence[str]) -> Row:
    """Do the two weakest classes gain most?"""
    mean = {name: statistics.fmean(class_changes(runs, name)[0]) for name in runs[0]["classes"]}
    most = sorted(mean, key=lambda name: -mean[name])[:2]
    return claim_row(
        f"the two largest gains: {', '.join(most)}",
        "pp",
        None,
        [mean[name] for name in most],
        set(most) == set(pair),
        f"they are those of {' and '.join(pair)}, the paper's two weakest classes",
    )


def draw(measured: dict[str, Sequence[Measured]]) -> "Figure":
    """Draw each class's accuracy before and after, and its change beside the paper's."""
    runs = measured["cifar10"]
    names = sorted(runs[0]["classes"], key=lambda name: statistics.fmean(class_percent(runs, "before", name)))
    figure, (left, right) = new_figure(1, 2, size=(10, 4.4))
    places = np.arange(len(names))
    for part, offset, colour in (("before", -0.2, GREY), ("after", 0.2, BLUE)):
        mean = [statistics.fmean(class_percent(runs, part, name)) for name in names]
        left.bar(places + offset, mean, width=0.4, color=colour, label=part)
    left.set(title="Accuracy on held-out images", ylabel="%", ylim=(0, 100))
    for name, place in zip(names, places, strict=True):
        differences, intervals = class_changes(runs, name)
        low, high = mean_interval(intervals)
        right.plot([place, place], [low, high], color=BLUE, alpha=0.5)
        right.plot(place, statistics.fmean(differences), "o", color=BLUE, label=None if place else "ours, 95 %")
    known = [(place, PAPER[name][2]) for name, place in zip(names, places, strict=True) if name in PAPER]
    if known:
        right.plot(*zip(*known, strict=True), "x", color=VERMILION, label="the paper")
    right.axhline(0, color=GREY, linewidth=0.8)
    right.set(title="Change", ylabel="pp")
    for axes in (left, right):
        axes.set_xticks(places, names, rotation=45, ha="right")
        axes.legend(frameon=False, fontsize=9)
    return figure


ITEM = Item("main", ("cifar10",), measure, rows, draw)
