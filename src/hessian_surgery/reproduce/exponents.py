"""Runs of the loop that differ in the exponent p alone, and which p wins."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from hessian_surgery.paper.config import LoopConfig
from hessian_surgery.paper.presets import paper_config
from hessian_surgery.reproduce.item import Measured
from hessian_surgery.reproduce.loop_rows import Run, mean_over_splits, percent, short_run
from hessian_surgery.reproduce.loop_runs import loop_run
from hessian_surgery.reproduce.row import Row, claim_row
from hessian_surgery.reproduce.workbench import Workbench

# Runs of all splits, by p as JSON has it: "0.5", "1", ….
ByExponent: TypeAlias = Mapping[str, Sequence[Run]]
# What gives one number for each run.
Figures: TypeAlias = Callable[[Sequence[Run]], list[float]]

EXPONENTS = (0, 0.5, 1, 2)
NAMES = {"cifar10": "CIFAR-10", "skin": "skin"}
SYMBOLS = {"0": "0", "0.5": "½", "1": "1", "2": "2"}
KEPT = ("accepted", "alpha_max", "sigma", "per_class")
SKIN = (
    "another network, on its own data; calibrated on half of the test images, as the network has "
    "nearly all of its training images right (`omega` has the figure)"
)


def exponent_config(dataset: str, exponent: float) -> LoopConfig:
    """The paper's settings with another p: 15 iterations on CIFAR-10, 10 on skin, Adam control."""
    return replace(paper_config("isic" if dataset == "skin" else "cifar10"), exponent=exponent)


def exponent_runs(bench: Workbench, split: int, exponents: Sequence[float]) -> Measured:
    """A run with each p, by its name."""
    return {str(p): short_run(loop_run(bench, split, exponent_config(bench.dataset, p)), KEPT) for p in exponents}


def by_exponent(measured: Sequence[Measured]) -> dict[str, list[Run]]:
    """The runs of all splits with each p."""
    return {p: [own[p] for own in measured] for p in SYMBOLS if p in measured[0]}


def held_out(figure: str) -> Figures:
    """What gives a figure after each run, on held-out images, in percent or pp."""
    return lambda runs: percent(runs, "after", figure)


def ahead(runs: ByExponent, p: str, other: str, values: Figures) -> list[float]:
    """The value with p minus the value with another, on each split."""
    return [own - rival for own, rival in zip(values(runs[p]), values(runs[other]), strict=True)]


def beats(differences: Sequence[float], lower: bool) -> bool:
    """Whether the mean difference is on the better side, with its interval over splits."""
    interval = mean_over_splits(differences)
    return interval is not None and (interval[1] < 0 if lower else interval[0] > 0)


def best_rival(runs: ByExponent, p: str, values: Figures, lower: bool) -> str:
    """The other p whose mean value is the best."""
    means = {other: statistics.fmean(values(found)) for other, found in runs.items() if other != p}
    return (min if lower else max)(means, key=lambda other: means[other])


def winner_row(
    label: str, runs: ByExponent, p: str, values: Figures, lower: bool, paper: float | None = None, unit: str = "pp"
) -> Row:
    """Does this p beat all others? Its difference to the best of them, paired over splits."""
    rival = best_rival(runs, p, values, lower)
    differences = ahead(runs, p, rival, values)
    side = "below" if lower else "above"
    rule = f"the difference to the best other p is {side} 0, with its interval over splits"
    text = f"{label}: p = {SYMBOLS[p]} minus p = {SYMBOLS[rival]}"
    return claim_row(text, unit, paper, differences, beats(differences, lower), rule, mean_over_splits(differences))
