"""Figure 3 and table 11: which classes of CIFAR-100 gain, one by one and by deciles.

The paper forms the deciles on the images that it reports them on. Then the weakest decile holds the
unlucky classes, which do better the next time by luck alone. Ours are also formed on the
calibration images, and these are judged.
"""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hessian_surgery.evidence.deciles import ClassGroup, group_changes
from hessian_surgery.paper.presets import paper_config
from hessian_surgery.report.figure_style import BLUE, GREEN, GREY, VERMILION, new_figure
from hessian_surgery.reproduce.item import Item, Measured
from hessian_surgery.reproduce.items.iterations import correlation, fisher_interval
from hessian_surgery.reproduce.loop_rows import NETWORK, Run, class_changes, class_percent, short_run
from hessian_surgery.reproduce.loop_runs import loop_run
from hessian_surgery.reproduce.row import Row, change_row, claim_row, mean_interval, shown_row
from hessian_surgery.reproduce.workbench import Workbench

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Table 11: accuracy before, and its change.
PAPER = (
    (30.0, 2.2),
    (41.8, -0.1),
    (50.8, -1.3),
    (54.9, 5.1),
    (59.7, 0.3),
    (64.3, -0.8),
    (67.8, -0.9),
    (73.4, -1.4),
    (77.7, -2.0),
    (86.2, -0.6),
)
# Section 8.3: the weakest decile gains, and these lose.
JUDGED = (1, 8, 9, 10)
# Section 8.3: changes of single classes.
CLASSES = {"willow_tree": 14.6, "woman": 12.0, "shrew": 9.1, "plate": -14.6, "bridge": -11.8}
# Figure 3 colours a class that changed by more than this, in pp.
COLOURED = 2.0
LOW = 30.0
SAME = "formed on the images that it is reported on, as in the paper: not judged, as luck forms it too"
OTHERS = "formed on calibration images, reported on held-out ones; the paper claims nothing of it"


def measure(bench: Workbench, split: int) -> Measured:
    """The run in three phases."""
    return short_run(loop_run(bench, split, paper_config("cifar100")), ())


def decile_groups(run: Run, formed_on: str) -> tuple[ClassGroup, ...]:
    """Ten groups of classes, formed on `before` (held-out images) or `calibration_before`."""
    return group_changes(np.array(run[formed_on]["per_class"]), np.array(run["pairs"], dtype=float))


def rows(measured: dict[str, Sequence[Measured]]) -> list[Row]:
    """Table 11 in the paper's way and with other images, and the claims about it."""
    runs = measured["cifar100"]
    same, other = ([decile_groups(run, part) for run in runs] for part in ("before", "calibration_before"))
    deciles = [row for number in range(len(PAPER)) for row in _decile_rows(same, other, number)]
    return [*deciles, *_regression(same, other), _weak_gain(runs), *_class_rows(runs), _low(runs)]


def _decile_rows(same: Sequence[tuple[ClassGroup, ...]], other: Sequence[tuple[ClassGroup, ...]], i: int) -> list[Row]:
    before, change = PAPER[i]
    label = f"decile {i + 1}"
    ours, intervals = _changes(other, i)
    if i + 1 in JUDGED:
        judged = change_row(f"{label}, formed on other images: change", "pp", change, ours, intervals)
    else:
        judged = shown_row(
            f"{label}, formed on other images: change", "pp", change, ours, OTHERS, mean_interval(intervals)
        )
    alike, alike_intervals = _changes(same, i)
    return [
        shown_row(f"{label}: before", "%", before, [100 * own[i].before for own in same], SAME),
        shown_row(f"{label}: change", "pp", change, alike, SAME, mean_interval(alike_intervals)),
        shown_row(
            f"{label}, formed on other images: before", "%", None, [100 * own[i].before for own in other], NETWORK
        ),
        judged,
    ]


def _changes(groups: Sequence[tuple[ClassGroup, ...]], i: int) -> tuple[list[float], list[tuple[float, float]]]:
    found = [own[i].change for own in groups]
    intervals = [(100 * own.interval[0], 100 * own.interval[1]) for own in found]
    return [100 * own.difference for own in found], intervals


def _regression(same: Sequence[tuple[ClassGroup, ...]], other: Sequence[tuple[ClassGroup, ...]]) -> list[Row]:
    """How much weaker the weakest decile seems, and how much more it gains, if luck forms it."""
    pairs = [(own[0], rest[0]) for own, rest in zip(same, other, strict=True)]
    why = "regression to the mean: what forming the decile on the reported images adds"
    before = [100 * (own.before - rest.before) for own, rest in pairs]
    change = [100 * (own.change.difference - rest.change.difference) for own, rest in pairs]
    return [
        shown_row("decile 1, accuracy before: the paper's way minus other images", "pp", None, before, why),
        shown_row("decile 1, change: the paper's way minus other images", "pp", None, change, why),
    ]


def _weak_gain(runs: Sequence[Run]) -> Row:
    """Do weak classes gain and strong ones pay?"""
    ours = []
    intervals = []
    for run in runs:
        change = [(gained - lost) / max(1, sum(own)) for own in run["pairs"] for _, lost, gained, _ in [own]]
        r = correlation(run["calibration_before"]["per_class"], change)
        ours.append(r)
        intervals.append(fisher_interval(r, len(change)) or (-1.0, 1.0))
    interval = mean_interval(intervals)
    rule = "a net transfer from strong to weak classes: r is below 0, with its interval over classes"
    return claim_row("r of accuracy on other images and change", "", None, ours, interval[1] < 0, rule, interval)


def _class_rows(runs: Sequence[Run]) -> list[Row]:
    why = "which single classes gain depends on the network"
    found = []
    for name, paper in CLASSES.items():
        if name in runs[0]["classes"]:
            ours, intervals = class_changes(runs, name)
            found.append(shown_row(f"{name}: change", "pp", paper, ours, why, mean_interval(intervals)))
    return found


def _low(runs: Sequence[Run]) -> Row:
    counts = [sum(100 * value < LOW for value in run["after"]["per_class"]) for run in runs]
    return shown_row(f"classes below {LOW:.0f} % after", "", 3, counts, NETWORK)


def draw(measured: dict[str, Sequence[Measured]]) -> "Figure":
    """Draw figure 3 (classes by accuracy, mean over splits) and table 11's changes by decile."""
    runs = measured["cifar100"]
    figure, (top, bottom) = new_figure(2, 1, size=(12, 8))
    _draw_classes(top, runs)
    numbers = np.arange(1, len(PAPER) + 1)
    for offset, part, colour, label in (
        (-0.2, "before", GREY, "ours, formed on the same images"),
        (0.2, "calibration_before", BLUE, "ours, formed on other images"),
    ):
        groups = [decile_groups(run, part) for run in runs]
        found = [_changes(groups, i) for i in range(len(PAPER))]
        bottom.bar(numbers + offset, [statistics.fmean(own) for own, _ in found], 0.4, color=colour, label=label)
    bottom.plot(numbers, [change for _, change in PAPER], "x", color=VERMILION, label="the paper")
    bottom.set(title="Change by decile of accuracy before", xlabel="decile", ylabel="pp", xticks=numbers)
    bottom.legend(frameon=False, fontsize=9)
    return figure


def _draw_classes(axes: "Axes", runs: Sequence[Run]) -> None:
    classes = runs[0]["classes"]
    mean = {
        part: [statistics.fmean(class_percent(runs, part, name)) for name in classes] for part in ("before", "after")
    }
    order = np.argsort(mean["before"])
    before, after = (np.array(mean[part])[order] for part in ("before", "after"))
    places = np.arange(len(classes))
    change = after - before
    colours = [GREEN if own > COLOURED else VERMILION if own < -COLOURED else BLUE for own in change]
    axes.bar(places, before, 0.8, color=GREY, alpha=0.5, label="before")
    axes.scatter(places, after, s=14, color=colours, zorder=3)
    for colour, label in ((GREEN, "after, +2 pp or more"), (VERMILION, "after, −2 pp or more"), (BLUE, "after")):
        axes.scatter([], [], s=14, color=colour, label=label)
    axes.set_xticks(places, [classes[j] for j in order], rotation=90, fontsize=6)
    axes.set(title="Accuracy on held-out images, mean over splits", ylabel="%")
    axes.legend(frameon=False, fontsize=9)


ITEM = Item("cifar100-classes", ("cifar100",), measure, rows, draw, splits=3)
