"""Table 14: the effective rank of S on three starts, what it costs, and entangled pairs."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hessian_surgery.data.splits import cap_per_class
from hessian_surgery.paper.config import LoopConfig
from hessian_surgery.paper.presets import PaperStart, paper_config
from hessian_surgery.report.figure_style import BLUE, GREEN, VERMILION, new_figure
from hessian_surgery.reproduce.item import Item, Measured
from hessian_surgery.reproduce.row import Row, change_row, claim_row, mean_interval, shown_row
from hessian_surgery.reproduce.workbench import Workbench
from hessian_surgery.studies.effective_rank import EffectiveRank, effective_rank_study
from hessian_surgery.studies.progress import PASSES_PER_PRODUCT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPSILON = 0.01
SHOWN = 3
OTHER = "another network; S scales with it"


@dataclass(frozen=True)
class Numbers:
    """One line of table 14, with ‖S‖_F and the energy share (%) from the text below it."""

    singular: tuple[float, float, float]
    flatness: float
    rank: float
    frobenius: float
    energy: float


PAPER = {
    "CIFAR-10, cross-entropy": Numbers((6.41, 5.22, 3.99), 1.23, 3.98, 9.76, 71.8),
    "skin, cross-entropy": None,
    "skin, class-balanced": Numbers((17.4, 9.4, 3.8), 1.86, 2.11, 20.4, 89.0),
}
CIFAR, PLAIN, BALANCED = PAPER
# The paper compares class-balanced skin lesions with CIFAR-10.
CONTRACTION = 2.11 - 3.98
# Pairs that the paper calls entangled; lower case, as class names are compared.
PAIRS = {CIFAR: ("cat", "dog"), PLAIN: ("mel", "nv"), BALANCED: ("mel", "nv")}


def measure(bench: Workbench, split: int) -> Measured:
    """S of each start of a data set, with its noise."""
    if bench.dataset == "cifar10":
        return {CIFAR: _as_dict(*_study(bench, split, paper_config("cifar10"), ""))}
    # First what needs a training: another process may be at it, and then this one goes elsewhere.
    starts: dict[str, tuple[PaperStart, str]] = {BALANCED: ("class-balanced", "class-balanced"), PLAIN: ("ce", "")}
    studied = {
        name: _study(bench, split, paper_config("isic", start), training) for name, (start, training) in starts.items()
    }
    found: Measured = {name: _as_dict(*study) for name, study in studied.items()}
    return found | {"contraction": contraction(studied[PLAIN][0], studied[BALANCED][0])}


def _study(bench: Workbench, split: int, config: LoopConfig, training: str) -> tuple[EffectiveRank, LoopConfig]:
    parts = bench.parts(split)
    data = parts.calibration
    if config.calibration_cap is not None:
        data = cap_per_class(data, config.calibration_cap, split)
    resamples = bench.number(1000, 100)
    found = effective_rank_study(
        bench.model(training),
        parts.training,
        data,
        config.search,
        epsilon=EPSILON,
        bootstrap=resamples,
        seed=split,
    )
    return found, config


def _as_dict(found: EffectiveRank, config: LoopConfig) -> dict[str, Any]:
    content = found.as_dict()
    del content["resampled_ranks"]
    return content | {"cost": cost(found, config)}


def cost(found: EffectiveRank, config: LoopConfig) -> dict[str, float]:
    """What the effective rank costs, as shares of one iteration and of a whole run of the loop.

    Counted in forward passes of an image: m products of a batch of n, and 2K passes over N images.
    An iteration takes one more pass, over its candidate; a run, one at its start.
    """
    steps = config.search.lanczos_steps or 0
    images = found.images
    rank = PASSES_PER_PRODUCT * steps * config.search.hessian_samples + 2 * len(found.eigenvalues) * images
    iteration = rank + images
    return {
        "of_iteration": rank / iteration,
        "of_run": rank / (config.total_iterations * iteration + images),
        "iterations": config.total_iterations,
    }


def contraction(plain: EffectiveRank, balanced: EffectiveRank) -> dict[str, Any]:
    """The change of the effective rank by class-balanced training, with a 95 % interval.

    Basic bootstrap: differences of resampled ranks, mirrored at the difference of the estimates.
    """
    change = balanced.effective_rank.estimate - plain.effective_rank.estimate
    drawn = np.subtract(balanced.resampled_ranks, plain.resampled_ranks)
    low, high = np.quantile(drawn, [0.025, 0.975]).tolist()
    return {"change": change, "interval": [2 * change - high, 2 * change - low]}


def rows(measured: dict[str, Sequence[Measured]]) -> list[Row]:
    """Table 14, and what the paper concludes from it."""
    found: dict[str, Sequence[Any]] = {
        CIFAR: [one[CIFAR] for one in measured["cifar10"]],
        PLAIN: [one[PLAIN] for one in measured["skin"]],
        BALANCED: [one[BALANCED] for one in measured["skin"]],
    }
    table = [row for name, paper in PAPER.items() for row in _table(name, found[name], paper)]
    contracted = [one["contraction"] for one in measured["skin"]]
    like = change_row(
        "effective rank, skin: class-balanced less cross-entropy",
        "",
        CONTRACTION,
        [one["change"] for one in contracted],
        [one["interval"] for one in contracted],
    )
    return [*table, *_ranks(found), like, *_shape(found), *_costs(found), *_entangled(found)]


def _table(name: str, found: Sequence[Any], paper: Numbers | None) -> list[Row]:
    shown = []
    for i in range(SHOWN):
        ours = [one["structure"]["singular_values"][i] for one in found]
        shown.append(
            shown_row(f"{name}: singular value {i + 1}", "", paper.singular[i] if paper else None, ours, OTHER)
        )
    shown.append(shown_row(f"{name}: σ₁/σ₂", "", paper.flatness if paper else None, flatness(found), OTHER))
    ours = [one["structure"]["frobenius"] for one in found]
    shown.append(shown_row(f"{name}: ‖S‖_F", "", paper.frobenius if paper else None, ours, OTHER))
    shown.append(shown_row(f"{name}: energy in two", "%", paper.energy if paper else None, energy(found), OTHER))
    if paper is None:
        interval = mean_interval([one["effective_rank"]["interval"] for one in found])
        shown.append(shown_row(f"{name}: effective rank", "", None, estimates(found), "not in the paper", interval))
    return shown


def flatness(found: Sequence[Any]) -> list[float]:
    """σ₁/σ₂ of each split."""
    return [one["structure"]["flatness"] or float("inf") for one in found]


def leading(one: Any) -> float:
    """The share (%) of Σσ² in as many directions as the effective rank says, rounded up."""
    values = np.square(one["structure"]["singular_values"])
    count = math.ceil(one["effective_rank"]["estimate"])
    return float(100 * values[:count].sum() / (values.sum() or 1.0))


def energy(found: Sequence[Any]) -> list[float]:
    """The share (%) of two singular values in Σσ², of each split."""
    return [100 * (one["leading_energy"] or 0.0) for one in found]


def estimates(found: Sequence[Any]) -> list[float]:
    """The effective rank of each split."""
    return [one["effective_rank"]["estimate"] for one in found]


def _ranks(found: dict[str, Sequence[Any]]) -> list[Row]:
    judged = []
    for name, paper in PAPER.items():
        if paper is not None:
            low, high = mean_interval([one["effective_rank"]["interval"] for one in found[name]])
            judged.append(
                claim_row(
                    f"{name}: effective rank",
                    "",
                    paper.rank,
                    estimates(found[name]),
                    low <= paper.rank <= high,
                    "the interval over images contains the paper's value",
                    (low, high),
                )
            )
    return judged


def _shape(found: dict[str, Sequence[Any]]) -> list[Row]:
    """The paper compares two data sets: what is said to distinguish them."""
    rule = "larger on class-balanced skin lesions than on CIFAR-10, as a mean over splits"
    pairs = (("σ₁/σ₂", "", flatness, 1.86 - 1.23), ("energy in two", "pp", energy, 89.0 - 71.8))
    judged = []
    for label, unit, take, paper in pairs:
        ours = statistics.fmean(take(found[BALANCED])) - statistics.fmean(take(found[CIFAR]))
        judged.append(claim_row(f"{label}: {BALANCED} less {CIFAR}", unit, paper, [ours], ours > 0, rule))
    for name in (CIFAR, BALANCED):
        shares = [leading(one) for one in found[name]]
        rule = "in practice changes have no more dimensions than the effective rank: 95 % or more, on every split"
        label = f"{name}: energy in as many directions as the effective rank, rounded up"
        judged.append(claim_row(label, "%", None, shares, min(shares) >= 95, rule))
    return judged


def _costs(found: dict[str, Sequence[Any]]) -> list[Row]:
    judged = []
    for name in (PLAIN, BALANCED):
        costs = [one["cost"] for one in found[name]]
        whole = f"the whole run of {costs[0]['iterations']} iterations"
        for key, label in (("of_iteration", "one iteration"), ("of_run", whole)):
            ours = [100 * one[key] for one in costs]
            rule = "it costs 5 to 10 %: at most 10 %, in passes over images"
            judged.append(
                claim_row(f"{name}: cost of the effective rank, of {label}", "%", 10.0, ours, max(ours) <= 10, rule)
            )
    return judged


def _entangled(found: dict[str, Sequence[Any]]) -> list[Row]:
    judged = []
    for name, pair in PAIRS.items():
        shares = [100 * opposed(one, pair) for one in found[name]]
        classes = " and ".join(named(found[name][0], pair))
        judged.append(
            claim_row(
                f"{name}: of spikes that move both {classes}, those that move them in opposite directions",
                "%",
                100.0,
                shares,
                min(shares) == 100,
                "the pair is entangled: every spike that moves both moves them in opposite directions, on every split",
            )
        )
    return judged


def named(one: Any, pair: tuple[str, str]) -> tuple[str, str]:
    """The pair as the data calls it; the first two classes if it has no such pair."""
    known = {name.lower(): name for name in one["classes"]}
    if set(pair) <= set(known):
        return known[pair[0]], known[pair[1]]
    return one["classes"][0], one["classes"][1]


def opposed(one: Any, pair: tuple[str, str]) -> float:
    """Of spikes that move both of a pair, the share that moves them in opposite directions."""
    columns = [one["classes"].index(name) for name in named(one, pair)]
    product = np.prod(np.array(one["sensitivity"])[:, columns], axis=1)
    return float((product < 0).sum() / max(1, (product != 0).sum()))


def draw(measured: dict[str, Sequence[Measured]]) -> "Figure":
    """Draw each start's singular energies, and its effective rank on each split."""
    figure, (left, right) = new_figure(1, 2, size=(10, 4.4))
    starts = ((CIFAR, "cifar10", BLUE), (PLAIN, "skin", GREEN), (BALANCED, "skin", VERMILION))
    for place, (name, dataset, colour) in enumerate(starts):
        found = [one[name] for one in measured[dataset]]
        values = np.square(found[0]["structure"]["singular_values"])
        shares = 100 * values / (values.sum() or 1.0)
        left.plot(range(1, len(values) + 1), shares, "o-", color=colour, markersize=4, label=name)
        low, high = mean_interval([one["effective_rank"]["interval"] for one in found])
        right.vlines(place, low, high, color=colour)
        right.plot([place] * len(found), estimates(found), "o", color=colour, markersize=4)
        paper = PAPER[name]
        if paper is not None:
            right.plot(place, paper.rank, "k_", markersize=18, label=None if place else "the paper")
    left.set(title="Energy of S by direction", xlabel="rank", ylabel="%", ylim=(0, None))
    right.set_xticks(range(len(starts)), [name.replace(", ", "\n") for name, *_ in starts])
    right.set(title="Effective rank (line: 95 % over images)", xlim=(-0.5, 2.5), ylim=(1, None))
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=9)
    return figure


ITEM = Item("effective-rank", ("cifar10", "skin"), measure, rows, draw, trains=True)
