"""Table 13: skin lesions. Trainings, surgery by Algorithm 2 on each, and post-hoc methods."""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hessian_surgery.paper.presets import PaperStart, paper_config
from hessian_surgery.report.figure_style import BLUE, new_figure
from hessian_surgery.reproduce.item import Item, Measured
from hessian_surgery.reproduce.loop_rows import changes, percent
from hessian_surgery.reproduce.loop_runs import loop_run
from hessian_surgery.reproduce.rivals import (
    adjusted_at,
    logit_adjusted,
    tau_normalized,
    trained,
)
from hessian_surgery.reproduce.row import Row, claim_row, mean_interval, shown_row
from hessian_surgery.reproduce.workbench import Workbench

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Table 13, in percent: MEL, NV, BCC, AK, BKL, DF, VASC, SCC, accuracy, balanced accuracy, σ.
CLASSES = ("mel", "nv", "bcc", "ak", "bkl", "df", "vasc", "scc")
TABLE = {
    "start": (47.2, 85.9, 74.4, 26.2, 36.5, 33.3, 10.5, 31.9, 67.7, 43.2, 23.6),
    "focal loss": (58.4, 88.7, 72.0, 35.4, 46.7, 27.8, 26.3, 38.3, 72.5, 49.2, 20.8),
    "class-balanced": (55.9, 78.3, 72.8, 30.4, 50.5, 57.1, 70.6, 46.0, 67.9, 57.7, 14.8),
    "surgery": (51.3, 87.8, 74.0, 38.5, 42.6, 50.0, 26.3, 31.9, 70.7, 50.3, 19.6),
    "focal loss, then surgery": (58.1, 82.8, 65.2, 41.5, 54.3, 38.9, 26.3, 44.7, 69.8, 51.5, 16.4),
    "class-balanced, then surgery": (54.0, 75.1, 69.6, 47.7, 59.9, 44.4, 68.4, 44.7, 67.0, 58.0, 11.3),
    "τ-norm": (46.9, 86.0, 74.4, 24.6, 35.5, 33.3, 10.5, 31.9, 67.6, 42.9, 23.8),
    "logit adjustment": (23.0, 1.7, 40.4, 32.3, 12.7, 83.3, 57.9, 34.0, 14.9, 35.7, 24.1),
}
# HAM10000 calls actinic keratoses akiec.
ALIASES = {"akiec": "ak"}
OTHER = "another network, and HAM10000's seven classes where ISIC-2019 is not at hand"
# The smallest τ of the paper, at which logit adjustment collapses there.
TAU = 0.25


def measure(bench: Workbench, split: int) -> Measured:
    """Every method on one split; the trainings are made once for all splits."""
    starts: dict[str, tuple[PaperStart, str]] = {
        "surgery": ("ce", ""),
        "focal loss, then surgery": ("focal", "focal"),
        "class-balanced, then surgery": ("class-balanced", "class-balanced"),
    }
    found: Measured = {
        name: loop_run(bench, split, paper_config("isic", start), training)
        for name, (start, training) in starts.items()
    }
    found |= {
        "focal loss": trained(bench, split, "focal"),
        "class-balanced": trained(bench, split, "class-balanced"),
        "τ-norm": tau_normalized(bench, split),
        "logit adjustment": logit_adjusted(bench, split),
        "collapse": adjusted_at(bench, split, TAU),
    }
    return found


def rows(measured: dict[str, Sequence[Measured]]) -> list[Row]:
    """Every number of the table, and what the paper concludes."""
    splits = measured["skin"]
    found: list[Row] = []
    for name, paper in TABLE.items():
        runs = [split["surgery" if name == "start" else name] for split in splits]
        found += _method(name, runs, paper, "before" if name == "start" else "after")
    return [*found, *_falls(splits), *_posthoc(splits), *_order(splits)]


def _method(name: str, runs: Sequence[Measured], paper: Sequence[float], when: str) -> list[Row]:
    whole = (("accuracy", "accuracy"), ("balanced accuracy", "balanced_accuracy"), ("σ", "sigma"))
    rows = [
        shown_row(f"{name}: {label}", "pp" if key == "sigma" else "%", theirs, percent(runs, when, key), OTHER)
        for (label, key), theirs in zip(whole, paper[len(CLASSES) :], strict=True)
    ]
    for place, own in enumerate(runs[0]["classes"]):
        known = ALIASES.get(own.lower(), own.lower())
        if known in CLASSES:
            ours = [100 * run[when]["per_class"][place] for run in runs]
            rows.append(shown_row(f"{name}: {known}", "%", paper[CLASSES.index(known)], ours, OTHER))
    return rows


# Surgery, what it starts from, and how the paper finds balanced accuracy to change.
PAIRS = (
    ("surgery", "start", "rises"),
    ("focal loss, then surgery", "focal loss", "rises"),
    ("class-balanced, then surgery", "class-balanced", "stays"),
)


def _falls(splits: Sequence[Measured]) -> list[Row]:
    """Surgery lowers σ on each start; balanced accuracy rises or stays as the paper says."""
    rows = []
    for name, start, expected in PAIRS:
        runs = [split[name] for split in splits]
        for key, column, how in (("sigma", -1, "falls"), ("balanced_accuracy", -2, expected)):
            ours, intervals = changes(runs, key)
            low, high = mean_interval(intervals)
            what = "σ, without sampling noise," if key == "sigma" else "balanced accuracy"
            holds = {"falls": high < 0, "rises": low > 0, "stays": low <= 0 <= high}[how]
            rule = "stays: the interval includes 0" if how == "stays" else f"{how}, and the interval excludes 0"
            theirs = TABLE[name][column] - TABLE[start][column]
            rows.append(
                claim_row(f"{name}: change of {what} against {start}", "pp", theirs, ours, holds, rule, (low, high))
            )
    return rows


def _posthoc(splits: Sequence[Measured]) -> list[Row]:
    """τ-normalization does nothing; logit adjustment collapses; columns are of about one length."""
    ours, intervals = changes([split["τ-norm"] for split in splits], "sigma")
    low, high = mean_interval(intervals)
    ratios = [split["τ-norm"]["lengths"][1] / split["τ-norm"]["lengths"][0] for split in splits]
    left = {key: [100 * split["collapse"][key] for split in splits] for key in ("start", "logits", "probabilities")}
    rule = f"below a tenth of what it was ({statistics.fmean(left['start']):.1f} %)"

    def gone(key: str) -> bool:
        return statistics.fmean(left[key]) < statistics.fmean(left["start"]) / 10

    return [
        claim_row("τ-norm: change of σ", "pp", 0.2, ours, low <= 0 <= high, "the interval includes 0", (low, high)),
        claim_row(
            "τ-norm: longest column of the head over the shortest",
            "",
            1.60 / 1.40,
            ratios,
            max(ratios) < 1.25,
            "below 1.25",
        ),
        claim_row(f"logit adjustment at τ = {TAU}: the largest class", "%", 1.7, left["logits"], gone("logits"), rule),
        shown_row(
            f"the same on probabilities at τ = {TAU}: the largest class",
            "%",
            1.7,
            left["probabilities"],
            "not the published method; it shows where a collapse may come from",
        ),
    ]


def _order(splits: Sequence[Measured]) -> list[Row]:
    """Which method has the lower σ."""
    rows = []
    for one, other in (
        ("surgery", "focal loss"),
        ("class-balanced", "focal loss"),
        ("class-balanced, then surgery", "focal loss, then surgery"),
    ):
        gaps = [100 * (split[one]["after"]["sigma"] - split[other]["after"]["sigma"]) for split in splits]
        theirs = TABLE[one][-1] - TABLE[other][-1]
        label = f"σ of {one} less that of {other}"
        rows.append(claim_row(label, "pp", theirs, gaps, max(gaps) < 0, "below 0 on every split"))
    return rows


def draw(measured: dict[str, Sequence[Measured]]) -> "Figure":
    """σ and balanced accuracy of each method, on each split."""
    names = [name for name in TABLE if name != "start"]
    figure, (left, right) = new_figure(1, 2, size=(10, 4))
    for axes, key in ((left, "sigma"), (right, "balanced_accuracy")):
        for split in measured["skin"]:
            axes.plot([100 * split[name]["after"][key] for name in names], range(len(names)), "o", color=BLUE)
            axes.axvline(100 * split["surgery"]["before"][key], color="#7F7F7F", linestyle="--", linewidth=1)
        axes.set_yticks(range(len(names)), names if axes is left else [""] * len(names))
        axes.invert_yaxis()
    left.set(xlabel="σ, percentage points (dashed: start)")
    right.set(xlabel="balanced accuracy, percent")
    return figure


ITEM = Item("skin", ("skin",), measure, rows, draw, splits=3, trains=True)
