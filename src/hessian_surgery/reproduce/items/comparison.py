"""Table 7: surgery beside trainings and post-hoc methods on CIFAR-10."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hessian_surgery.model.losses import class_weights
from hessian_surgery.paper.presets import paper_config
from hessian_surgery.report.figure_style import BLUE, GREY, new_figure
from hessian_surgery.reproduce.item import Item, Measured
from hessian_surgery.reproduce.loop_rows import changes, percent
from hessian_surgery.reproduce.loop_runs import loop_run
from hessian_surgery.reproduce.rivals import (
    logit_adjusted,
    method_rows,
    tau_normalized,
    trained,
)
from hessian_surgery.reproduce.row import Row, claim_row, mean_interval, shown_row
from hessian_surgery.reproduce.workbench import Workbench

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Table 7: accuracy %, σ pp, its change, cat %, dog %. Surgery is the run with Adam-style control.
PAPER: dict[str, dict[str, float | None]] = {
    "focal loss": {"accuracy": 84.8, "sigma": 7.81, "change": -0.76, "cat": 70.2, "dog": 72.3},
    "class-balanced": {"accuracy": 84.4, "sigma": 7.97, "change": -0.60, "cat": None, "dog": None},
    "τ-norm": {"accuracy": 84.7, "sigma": 7.90, "change": -0.67, "cat": 74.8, "dog": 66.3},
    "logit adjustment": {"accuracy": 84.9, "sigma": 8.57, "change": 0.0, "cat": 68.6, "dog": 69.0},
    "surgery": {"accuracy": 85.1, "sigma": 5.78, "change": -2.79, "cat": 76.1, "dog": 73.9},
    "focal loss, then surgery": {"accuracy": 85.1, "sigma": 5.51, "change": -3.06, "cat": 79.1, "dog": 73.5},
}
OTHER = "another network than the paper's"


def measure(bench: Workbench, split: int) -> Measured:
    """Every method on one split; the trainings are made once for all splits."""
    config = paper_config("cifar10")
    matched = replace(config, search=replace(config.search, loss="focal"))
    weights = class_weights(bench.source.part("train", "data").counts)
    # First what another process may be at, and what is kept if it is: then this one goes elsewhere.
    loops = {
        "surgery": loop_run(bench, split, config),
        "focal loss, then surgery": loop_run(bench, split, matched, "focal"),
    }
    return loops | {
        "class-balanced": trained(bench, split, "class-balanced"),
        "focal loss": trained(bench, split, "focal"),
        "τ-norm": tau_normalized(bench, split),
        "logit adjustment": logit_adjusted(bench, split),
        "class weights": float(weights.max() / weights.min()),
    }


def rows(measured: dict[str, Sequence[Measured]]) -> list[Row]:
    """Each method's numbers, and what the paper concludes from them."""
    splits = measured["cifar10"]
    found: list[Row] = []
    for name, paper in PAPER.items():
        runs = [split[name] for split in splits]
        # The last method starts from another network: its own change is judged below.
        own = {key: value for key, value in paper.items() if key != "change" or name != "focal loss, then surgery"}
        found += method_rows(name, runs, own, OTHER)
    start = [split["surgery"] for split in splits]
    both = [split["focal loss, then surgery"] for split in splits]
    ours, intervals = changes(both, "sigma")
    low, high = mean_interval(intervals)
    base = [
        shown_row("start: accuracy", "%", 84.9, percent(start, "before", "accuracy"), OTHER),
        shown_row("start: σ", "pp", 8.57, percent(start, "before", "sigma"), OTHER),
    ]
    adds = claim_row(
        "surgery after focal loss: change of σ against focal loss alone",
        "pp",
        5.51 - 7.81,
        ours,
        high < 0,
        "σ falls, and the interval excludes 0",
        (low, high),
    )
    ratios = [split["class weights"] for split in splits]
    differs = claim_row(
        "class-balanced loss: largest class weight over the smallest",
        "",
        None,
        ratios,
        min(ratios) > 1 + 1e-6,
        "the weights differ, so it is another loss than cross-entropy",
    )
    return [*base, *found, adds, differs, *_ranking(splits)]


def _ranking(splits: Sequence[Measured]) -> list[Row]:
    """Surgery has a lower σ than each other method, on the same images."""
    rows = []
    for name in ("focal loss", "class-balanced", "τ-norm"):
        gaps = [100 * (split["surgery"]["after"]["sigma"] - split[name]["after"]["sigma"]) for split in splits]
        theirs = (PAPER["surgery"]["sigma"] or 0) - (PAPER[name]["sigma"] or 0)
        lower = all(gap < 0 for gap in gaps)
        rows.append(
            claim_row(f"σ after surgery less that of {name}", "pp", theirs, gaps, lower, "below 0 on every split")
        )
    return rows


def draw(measured: dict[str, Sequence[Measured]]) -> "Figure":
    """σ after each method, on each split."""
    splits = measured["cifar10"]
    names = list(PAPER)
    figure, (axes,) = new_figure(size=(8, 4))
    for split in splits:
        axes.plot([100 * split[name]["after"]["sigma"] for name in names], range(len(names)), "o", color=BLUE)
    start = [100 * split["surgery"]["before"]["sigma"] for split in splits]
    axes.axvline(sum(start) / len(start), color=GREY, linestyle="--", label="start")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xlabel="σ on held-out images, percentage points (a dot for each split)")
    axes.legend(frameon=False)
    return figure


ITEM = Item("comparison", ("cifar10",), measure, rows, draw, trains=True)
