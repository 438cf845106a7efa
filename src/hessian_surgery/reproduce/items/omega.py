"""Table 8: the exponent p of the class-error weights, on CIFAR-10 and on skin lesions."""

import statistics
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hessian_surgery.data.splits import cap_per_class
from hessian_surgery.evidence.metrics import compute_metrics
from hessian_surgery.model.classifier import as_classifier
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.report.figure_style import BLUE, GREY, VERMILION, new_figure
from hessian_surgery.reproduce.exponents import (
    NAMES,
    SKIN,
    SYMBOLS,
    ByExponent,
    ahead,
    beats,
    by_exponent,
    exponent_runs,
    held_out,
    winner_row,
)
from hessian_surgery.reproduce.item import Item, Measured
from hessian_surgery.reproduce.items.iterations import EARLY, correlation, rises
from hessian_surgery.reproduce.loop_rows import (
    NETWORK,
    Run,
    changes,
    class_changes,
    class_percent,
    mean_over_splits,
    percent,
    rollbacks,
    watched,
)
from hessian_surgery.reproduce.row import Row, change_row, claim_row, shown_row
from hessian_surgery.reproduce.workbench import Workbench

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXPONENTS = (0.5, 1, 2)
PAIRS = {"cifar10": ("cat", "dog"), "skin": ("vasc", "df")}
# Table 8: accuracy, σ and the two weakest classes at the start.
START = {"cifar10": (84.9, 8.57, (68.6, 69.0)), "skin": (67.7, 23.6, (10.5, 33.3))}
# Table 8: accuracy, σ, its change, and the same two classes, with each p.
PAPER = {
    "cifar10": {
        "0.5": (85.0, 6.06, -2.51, (75.7, 72.5)),
        "1": (85.2, 5.96, -2.61, (73.4, 76.6)),
        "2": (84.9, 5.69, -2.88, (76.9, 73.9)),
    },
    "skin": {
        "0.5": (69.9, 18.4, -5.2, (31.6, 61.1)),
        "1": (71.4, 21.5, -2.1, (21.1, 50.0)),
        "2": (70.5, 19.5, -4.1, (26.3, 61.1)),
    },
}
# Section 7.6: balanced accuracy on skin.
BALANCED = {"0.5": 52.5, "1": 49.8}
# Section 7.6: rollbacks on CIFAR-10.
ROLLBACKS = {"0.5": 3.0, "2": 1.0}
# Section 7.6: linear and square are said to plateau after this iteration on skin.
PLATEAU = 5
# Section 9.2: images of a class that calibrate.
CAP = 250
LEARNT = "section 9.2 calibrates on these: near 100 % they show no weak class, so test images calibrate here"


def measure(bench: Workbench, split: int) -> Measured:
    """A run with each p, and how well the network knows its training images."""
    runs = exponent_runs(bench, split, EXPONENTS)
    return runs | {"training": bench.once("training-images", partial(training_metrics, bench))}


def training_metrics(bench: Workbench) -> Measured:
    """Metrics on section 9.2's calibration set: at most 250 training images of each class."""
    data = cap_per_class(bench.source.part("train", "data"), bench.number(CAP, 10), 0)
    predictions = compute_logits(as_classifier(bench.model()), data).argmax(dim=1).cpu()
    return compute_metrics(predictions, data.labels, len(data.classes)).as_dict()


def rows(measured: dict[str, Sequence[Measured]]) -> list[Row]:
    """Table 8 beside ours, and section 7.6's claims."""
    found = {dataset: by_exponent(own) for dataset, own in measured.items()}
    tables = [row for dataset, runs in found.items() for row in _table(dataset, runs)]
    known = [100 * own["training"]["balanced_accuracy"] for own in measured["skin"]]
    learnt = shown_row("skin: balanced accuracy on at most 250 training images of each class", "%", None, known, LEARNT)
    return [*tables, *_cifar10(found["cifar10"]), *_skin(found["skin"]), learnt]


def _table(dataset: str, runs: ByExponent) -> list[Row]:
    name = NAMES[dataset]
    why = SKIN if dataset == "skin" else NETWORK
    pair = watched(runs["1"], PAIRS[dataset])
    accuracy, sigma, classes = START[dataset]
    rows = [
        shown_row(f"{name}, start: accuracy", "%", accuracy, percent(runs["1"], "before", "accuracy"), why),
        shown_row(f"{name}, start: σ", "pp", sigma, percent(runs["1"], "before", "sigma"), why),
    ]
    for own, value in zip(pair, classes, strict=True):
        rows.append(shown_row(f"{name}, start: {own}", "%", value, class_percent(runs["1"], "before", own), why))
    for p, (accuracy, sigma, change, classes) in PAPER[dataset].items():
        label = f"{name}, p = {SYMBOLS[p]}"
        rows += [
            shown_row(f"{label}: accuracy", "%", accuracy, percent(runs[p], "after", "accuracy"), why),
            shown_row(f"{label}: σ", "pp", sigma, percent(runs[p], "after", "sigma"), why),
            change_row(f"{label}: Δσ, sampling noise removed", "pp", change, *changes(runs[p], "sigma")),
        ]
        for own, value in zip(pair, classes, strict=True):
            rows.append(shown_row(f"{label}: {own}", "%", value, class_percent(runs[p], "after", own), why))
    return rows


def _cifar10(runs: ByExponent) -> list[Row]:
    """Square wins, and the square root causes rollbacks and a stronger anti-correlation."""
    pair = watched(runs["1"], PAIRS["cifar10"])

    def backs(found: Sequence[Run]) -> list[float]:
        return [float(rollbacks(run)) for run in found]

    def opposed(found: Sequence[Run]) -> list[float]:
        return [pair_correlation(run, pair) for run in found]

    shown = [
        shown_row(f"CIFAR-10, p = {SYMBOLS[p]}: rollbacks", "", value, backs(runs[p]), NETWORK)
        for p, value in ROLLBACKS.items()
    ]
    more = ahead(runs, "0.5", "2", backs)
    stronger = ahead(runs, "0.5", "2", opposed)
    label = f"CIFAR-10, r of the increments of {' and '.join(pair)}: p = ½ minus p = 2"
    return [
        winner_row("CIFAR-10, square wins, σ", runs, "2", held_out("sigma"), lower=True, paper=-0.27),
        *shown,
        claim_row(
            "CIFAR-10, rollbacks: p = ½ minus p = 2",
            "",
            2.0,
            more,
            beats(more, lower=False),
            "p = ½ causes more rollbacks: the difference is above 0, with its interval over splits",
            mean_over_splits(more),
        ),
        claim_row(
            label,
            "",
            None,
            stronger,
            beats(stronger, lower=True),
            "p = ½ amplifies the anti-correlation: the difference is below 0, with its interval over splits",
            mean_over_splits(stronger),
        ),
    ]


def pair_correlation(run: Run, pair: Sequence[str]) -> float:
    """r of the increments of two classes in accepted iterations after the first two."""
    states = [run["calibration_before"], *run["iterations"]]
    kept = [t for t in range(EARLY + 1, len(states)) if states[t]["accepted"]]
    places = [run["classes"].index(name) for name in pair]
    first, second = ([states[t]["per_class"][j] - states[t - 1]["per_class"][j] for t in kept] for j in places)
    return correlation(first, second)


def _skin(runs: ByExponent) -> list[Row]:
    """The square root wins, without a plateau; linear gives the worst balanced accuracy."""
    balanced = held_out("balanced_accuracy")
    shown = [
        shown_row(f"skin, p = {SYMBOLS[p]}: balanced accuracy", "%", value, balanced(runs[p]), SKIN)
        for p, value in BALANCED.items()
    ]
    gains = [
        change_row(f"skin, p = ½: gain of {name}", "pp", paper, *class_changes(runs["0.5"], name))
        for name, paper in zip(watched(runs["1"], PAIRS["skin"]), (21.1, 27.8), strict=True)
    ]
    counts = [rises([run["calibration_before"]["sigma"], *_sigmas(run)]) for run in runs["0.5"]]
    fell = all(_sigmas(run)[-1] < run["calibration_before"]["sigma"] for run in runs["0.5"])
    rule = "it converges monotonically for 10 iterations: σ falls and never rises, in every split"
    return [
        winner_row("skin, square root wins, σ", runs, "0.5", held_out("sigma"), lower=True, paper=-1.1),
        *shown,
        winner_row("skin, best balanced accuracy", runs, "0.5", balanced, lower=False),
        winner_row("skin, worst balanced accuracy", runs, "1", balanced, lower=True),
        *gains,
        claim_row("skin, p = ½: iterations that raise σ", "", 0.0, counts, fell and not any(counts), rule),
        winner_row(f"skin, fall of σ after iteration {PLATEAU}", runs, "0.5", late_falls, lower=False),
    ]


def _sigmas(run: Run) -> list[float]:
    return [record["sigma"] for record in run["iterations"]]


def late_falls(runs: Sequence[Run]) -> list[float]:
    """How much σ fell on calibration images after iteration 5, in pp."""
    sigmas = [_sigmas(run) for run in runs]
    return [100 * (own[min(PLATEAU, len(own)) - 1] - own[-1]) for own in sigmas]


def draw(measured: dict[str, Sequence[Measured]]) -> "Figure":
    """Draw σ after surgery with each p: each split, their mean, and the paper's."""
    figure, axes = new_figure(1, 2, size=(10, 4.4))
    for own, (dataset, found) in zip(axes, measured.items(), strict=True):
        runs = by_exponent(found)
        places = np.arange(len(runs))
        after = np.array([percent(runs[p], "after", "sigma") for p in runs])
        own.plot(places, after, color=GREY, alpha=0.6)
        own.plot(places, after.mean(axis=1), "o-", color=BLUE, label="ours, mean over splits")
        own.plot(places, [PAPER[dataset][p][1] for p in runs], "x--", color=VERMILION, label="the paper")
        start = statistics.fmean(percent(runs["1"], "before", "sigma"))
        own.axhline(start, color=GREY, linestyle=":", label="ours, start")
        own.set_xticks(places, [f"p = {SYMBOLS[p]}" for p in runs])
        own.set(title=NAMES[dataset], ylabel="σ after surgery, pp")
        own.legend(frameon=False, fontsize=9)
    return figure


ITEM = Item("omega", ("cifar10", "skin"), measure, rows, draw)
