"""Table 12: surgery on all three data sets, on held-out images."""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hessian_surgery.paper.config import LoopConfig
from hessian_surgery.paper.presets import paper_config
from hessian_surgery.report.figure_style import BLUE, GREY, VERMILION, new_figure
from hessian_surgery.reproduce.exponents import SKIN
from hessian_surgery.reproduce.item import Item, Measured
from hessian_surgery.reproduce.items.cifar100_phases import phases
from hessian_surgery.reproduce.loop_rows import NETWORK, Run, changes, mean_over_splits, percent, short_run
from hessian_surgery.reproduce.loop_runs import loop_run
from hessian_surgery.reproduce.row import Row, change_row, claim_row, mean_interval, shown_row
from hessian_surgery.reproduce.workbench import Workbench

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "skin": "skin, focal loss first"}
# Table 12: classes, spikes, σ before and after, relative change of σ, change of accuracy.
PAPER = {
    "cifar10": (10, 9, 8.57, 5.52, -35.6, -0.2),
    "cifar100": (100, 45, 16.28, 16.02, -1.6, 0.1),
    "skin": (8, 7, 23.6, 16.4, -30.5, -0.2),
}
# Table 13: σ of the focal network, which table 12 counts accuracy from, but not σ.
FOCAL_SIGMA = 20.8
# Relative change of σ on the sensitivity set: table 5, and section 8.3.
CALIBRATION = {"cifar10": -42.9, "cifar100": -6.2}
# Section 11: changes of accuracy are within this, in pp.
WITHIN = 0.5
CROSS_ENTROPY = "the table takes σ before from the cross-entropy network, and accuracy from the focal one"


def measure(bench: Workbench, split: int) -> Measured:
    """The run of the table; on skin with σ of the cross-entropy network too."""
    config, training = _settings(bench.dataset)
    run = loop_run(bench, split, config, training)
    found = short_run(run, ("phase", "accepted", "alpha_max", "eigenvalues", "accuracy", "sigma", "deflation"))
    start = loop_run(bench, split, paper_config("isic")) if bench.dataset == "skin" else run
    return found | {"untrained_sigma": start["before"]["sigma"]}


def _settings(dataset: str) -> tuple[LoopConfig, str]:
    if dataset == "skin":
        return paper_config("isic", "focal"), "focal"
    return (paper_config("cifar100") if dataset == "cifar100" else paper_config(control="gamma")), ""


def rows(measured: dict[str, Sequence[Measured]]) -> list[Row]:
    """Table 12 beside ours, and the claims about it."""
    table = [row for dataset in PAPER for row in _table(dataset, measured[dataset])]
    return [*table, *_claims(measured)]


def _table(dataset: str, runs: Sequence[Run]) -> list[Row]:
    classes, spikes, before, after, relative, accuracy = PAPER[dataset]
    name = NAMES[dataset]
    why = SKIN if dataset == "skin" else NETWORK
    used = [sum(phase["spikes"] for phase in phases(run)) for run in runs]
    start = [100 * run["untrained_sigma"] for run in runs]
    ends = percent(runs, "after", "sigma")
    whole = [100 * (end / own - 1) for own, end in zip(start, ends, strict=True)]
    table_why = CROSS_ENTROPY if dataset == "skin" else why
    found = [
        shown_row(f"{name}: classes", "", classes, [len(run["classes"]) for run in runs], why),
        shown_row(f"{name}: spikes used", "", spikes, used, why),
        shown_row(f"{name}: σ before", "pp", before, start, table_why),
        shown_row(f"{name}: σ after", "pp", after, ends, why),
        shown_row(f"{name}: relative change of σ", "%", relative, whole, table_why),
    ]
    change = after - before
    if dataset == "skin":
        change = after - FOCAL_SIGMA
        own = [100 * (run["after"]["sigma"] / run["before"]["sigma"] - 1) for run in runs]
        paper = 100 * change / FOCAL_SIGMA
        found.append(shown_row(f"{name}: relative change of σ from the focal network", "%", paper, own, why))
    differences, intervals = changes(runs, "accuracy")
    within = abs(statistics.fmean(differences)) <= WITHIN
    rule = f"within ±{WITHIN} pp on average over splits (section 11)"
    return [
        *found,
        change_row(f"{name}: Δσ by surgery, sampling noise removed", "pp", change, *changes(runs, "sigma")),
        claim_row(f"{name}: Δ accuracy", "pp", accuracy, differences, within, rule, mean_interval(intervals)),
    ]


def relative_change(run: Run, part: str) -> float:
    """The change of σ in percent: `part` is "" for held-out images, or "calibration_"."""
    return float(100 * (run[f"{part}after"]["sigma"] / run[f"{part}before"]["sigma"] - 1))


def _claims(measured: dict[str, Sequence[Measured]]) -> list[Row]:
    """CIFAR-100 gains less, and its calibration images promise more than held-out ones keep."""
    few, many = (measured[dataset] for dataset in CALIBRATION)
    modest = [relative_change(b, "") - relative_change(a, "") for a, b in zip(few, many, strict=True)]
    gaps = {
        dataset: [relative_change(run, "") - relative_change(run, "calibration_") for run in measured[dataset]]
        for dataset in CALIBRATION
    }
    paper = {dataset: PAPER[dataset][4] - CALIBRATION[dataset] for dataset in CALIBRATION}
    steered = [
        shown_row(
            f"{NAMES[dataset]}: relative change of σ on calibration images",
            "%",
            CALIBRATION[dataset],
            [relative_change(run, "calibration_") for run in measured[dataset]],
            NETWORK,
        )
        for dataset in CALIBRATION
    ]
    extra = [many_gap - few_gap for few_gap, many_gap in zip(gaps["cifar10"], gaps["cifar100"], strict=True)]
    return [
        _above_zero("relative change of σ: CIFAR-100 minus CIFAR-10", 34.0, modest, "modest compared to CIFAR-10"),
        *steered,
        _above_zero(
            "CIFAR-100: held-out minus calibration",
            paper["cifar100"],
            gaps["cifar100"],
            "partial overfitting to the calibration images",
        ),
        _above_zero(
            "held-out minus calibration: CIFAR-100 minus CIFAR-10",
            paper["cifar100"] - paper["cifar10"],
            extra,
            "overfitting is more pronounced with 100 classes (the paper's own numbers say the opposite)",
        ),
    ]


def _above_zero(label: str, paper: float, ours: Sequence[float], claim: str) -> Row:
    interval = mean_over_splits(ours)
    holds = interval is not None and interval[0] > 0
    return claim_row(label, "%", paper, ours, holds, f"{claim}: above 0, with its interval over splits", interval)


def draw(measured: dict[str, Sequence[Measured]]) -> "Figure":
    """Draw σ before and after on each data set, beside the paper's."""
    figure, axes = new_figure(1, 2, size=(10, 4.4))
    places = np.arange(len(PAPER))
    theirs = [own[2:4] for own in PAPER.values()]
    ours = [
        (
            statistics.fmean(100 * run["untrained_sigma"] for run in measured[dataset]),
            statistics.fmean(percent(measured[dataset], "after", "sigma")),
        )
        for dataset in PAPER
    ]
    highest = 1.25 * max(value for pair in (*ours, *theirs) for value in pair)
    for panel, title, values, colour in zip(
        axes, ("ours", "the paper"), (ours, theirs), (BLUE, VERMILION), strict=True
    ):
        panel.bar(places - 0.2, [before for before, _ in values], 0.4, color=GREY, label="before")
        panel.bar(places + 0.2, [after for _, after in values], 0.4, color=colour, label="after")
        panel.set_xticks(places, ["CIFAR-10", "CIFAR-100", "skin"])
        panel.set(title=f"σ on held-out images, {title}", ylabel="pp", ylim=(0, highest))
        panel.legend(frameon=False, fontsize=9)
    return figure


ITEM = Item("summary", ("cifar10", "cifar100", "skin"), measure, rows, draw, splits=3)
