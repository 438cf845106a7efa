"""Table 5: the γ-decay run, iteration by iteration, on calibration images."""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from hessian_surgery.paper.amplitude import GammaControl, Signal
from hessian_surgery.report.figure_style import BLUE, GREY, VERMILION, new_figure
from hessian_surgery.reproduce.item import Item, Measured
from hessian_surgery.reproduce.items.main import measure
from hessian_surgery.reproduce.loop_rows import NETWORK, Run, rollbacks, watched
from hessian_surgery.reproduce.row import Row, claim_row, shown_row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Table 5, from the start to iteration 8; 9 and 10 were rolled back and show α_max alone.
PAPER = {
    "accuracy": (84.1, 84.9, 84.6, 85.0, 84.4, 85.1, 84.4, 84.8, 84.7),
    "sigma": (9.17, 7.05, 5.97, 6.22, 5.80, 6.12, 6.62, 5.52, 5.24),
    "average": (9.17, 8.53, 7.77, 7.30, 6.85, 6.63, 6.63, 6.30, 5.98),
    "alpha_max": (0.020, 0.020, 0.020, 0.020, 0.020, 0.020, 0.014, 0.014, 0.014, 0.0098, 0.0069),
    "first": (63.8, 70.4, 73.2, 75.1, 73.2, 75.5, 71.8, 76.3, 74.6),
    "second": (70.8, 75.4, 79.5, 73.3, 77.6, 73.5, 76.6, 75.2, 77.6),
}
LABELS = {"accuracy": "accuracy", "sigma": "σ", "average": "EMA of σ", "alpha_max": "α_max"}
UNITS = {"sigma": "pp", "average": "pp", "alpha_max": ""}
PAIR = ("cat", "dog")
# Iterations that are said to do most of it.
EARLY = 2


@dataclass(frozen=True)
class Trace:
    """One run's columns of table 5, from the start on; in percent and pp.

    Attributes:
        columns: a list for each key of `PAPER`.
        increments: of both classes (two rows), in each accepted iteration after the first two,
            which lift both.
        reduced: for each of these iterations, whether α_max was below its start.
    """

    columns: dict[str, list[float]]
    increments: tuple[list[float], list[float]]
    reduced: list[bool]


def trace(run: Run, pair: Sequence[str]) -> Trace:
    """The columns of table 5; α_max is the one that the iteration leaves, as in the paper."""
    start = run["calibration_before"]
    records = run["iterations"]
    places = [run["classes"].index(name) for name in pair]
    states = [start, *records]
    control = GammaControl(records[0]["alpha_max"], start["sigma"])
    controls = [control]
    for before, record in zip(states, records, strict=False):
        control = control.update(_signal(before, record))
        controls.append(control)
    first, second = ([100 * state["per_class"][place] for state in states] for place in places)
    kept = [t for t, record in enumerate(records) if record["accepted"] and t >= EARLY]
    return Trace(
        {
            "accuracy": [100 * state["accuracy"] for state in states],
            "sigma": [100 * state["sigma"] for state in states],
            "average": [100 * own.average for own in controls],
            "alpha_max": [own.value for own in controls],
            "first": first,
            "second": second,
        },
        ([first[t + 1] - first[t] for t in kept], [second[t + 1] - second[t] for t in kept]),
        [records[t]["alpha_max"] < records[0]["alpha_max"] for t in kept],
    )


def _signal(before: dict[str, Any], record: dict[str, Any]) -> Signal:
    return Signal(record["accepted"], before["sigma"], record["candidate_sigma"], record["max_drop"])


def rows(measured: dict[str, Sequence[Measured]]) -> list[Row]:
    """Each cell of table 5, and the claims about it."""
    runs = measured["cifar10"]
    pair = watched(runs, PAIR)
    traces = [trace(run, pair) for run in runs]
    cells = [
        row
        for t in range(len(PAPER["alpha_max"]))
        for key in PAPER
        for row in _cell(traces, key, t, dict(zip(("first", "second"), pair, strict=True)))
    ]
    rolled = shown_row("iterations rolled back", "", 2, [rollbacks(run) for run in runs], NETWORK)
    return [*cells, rolled, _monotone(traces), *_early(traces, pair), _opposed(traces, pair), *_amplitude(traces, pair)]


def _cell(traces: Sequence[Trace], key: str, t: int, pair: dict[str, str]) -> list[Row]:
    ours = [own.columns[key][t] for own in traces if t < len(own.columns[key])]
    if not ours:
        return []
    paper = PAPER[key][t] if t < len(PAPER[key]) else None
    label = f"iteration {t}: {LABELS.get(key) or pair[key]}"
    return [shown_row(label, UNITS.get(key, "%"), paper, ours, NETWORK)]


def rises(values: Sequence[float]) -> int:
    """How often a value is above the one before."""
    return sum(later > earlier for earlier, later in itertools.pairwise(values))


def _monotone(traces: Sequence[Trace]) -> Row:
    counts = [rises(own.columns["sigma"]) for own in traces]
    fell = all(own.columns["sigma"][-1] < own.columns["sigma"][0] for own in traces)
    rule = "σ falls, and no iteration raises it, in every split (three do in the paper's own table)"
    return claim_row("iterations that raise σ", "", rises(PAPER["sigma"]), counts, fell and not any(counts), rule)


def early_share(values: Sequence[float]) -> float:
    """The first two iterations' share in the whole fall, in percent; 0 if there was no fall."""
    whole = values[0] - values[-1]
    return 100 * (values[0] - values[min(EARLY, len(values) - 1)]) / whole if whole > 0 else 0.0


def _early(traces: Sequence[Trace], pair: Sequence[str]) -> list[Row]:
    shares = [early_share(own.columns["sigma"]) for own in traces]
    paper = early_share(PAPER["sigma"])
    rule = "iterations 1 and 2 make more than half of the fall of σ, on average over splits"
    found = [claim_row("share of iterations 1–2 in Δσ", "%", paper, shares, statistics.fmean(shares) > 50, rule)]
    for key, name in zip(("first", "second"), pair, strict=True):
        gains = [own.columns[key][min(EARLY, len(own.columns[key]) - 1)] - own.columns[key][0] for own in traces]
        paper = PAPER[key][EARLY] - PAPER[key][0]
        found.append(shown_row(f"{name}: gain of iterations 1–2", "pp", paper, gains, NETWORK))
    return found


def correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Pearson's r; 0 if one does not vary or there are fewer than three."""
    if len(first) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def fisher_interval(r: float, pairs: int) -> tuple[float, float] | None:
    """The 95 % interval of a correlation of so many pairs; None for fewer than four."""
    if pairs < 4 or abs(r) >= 1:
        return None
    half = float(stats.norm.ppf(0.975)) / (pairs - 3) ** 0.5
    return float(np.tanh(np.arctanh(r) - half)), float(np.tanh(np.arctanh(r) + half))


def _opposed(traces: Sequence[Trace], pair: Sequence[str]) -> Row:
    """Do the two classes oscillate anti-symmetrically?"""
    each = [correlation(*own.increments) for own in traces]
    first, second = ([value for own in traces for value in own.increments[side]] for side in (0, 1))
    interval = fisher_interval(correlation(first, second), len(first))
    paper = correlation(*(np.diff(PAPER[key])[EARLY:].tolist() for key in ("first", "second")))
    rule = "they oscillate anti-symmetrically: r over all splits and iterations is below 0, with its interval"
    holds = interval is not None and interval[1] < 0
    return claim_row(
        f"r of the increments of {' and '.join(pair)} after iteration {EARLY}", "", paper, each, holds, rule, interval
    )


def _amplitude(traces: Sequence[Trace], pair: Sequence[str]) -> list[Row]:
    """Does α_max fall, and does that calm the two classes?"""
    start, end = ([own.columns["alpha_max"][place] for own in traces] for place in (0, -1))
    falls = all(after < before for before, after in zip(start, end, strict=True))
    adapts = claim_row("α_max at the end", "", 0.0069, end, falls, "it ends below its start of 0.02 in every split")
    sizes = {
        reduced: [
            (abs(own.increments[0][i]) + abs(own.increments[1][i])) / 2
            for own in traces
            for i in range(len(own.reduced))
            if own.reduced[i] == reduced
        ]
        for reduced in (False, True)
    }
    label = f"mean size of an increment of {' and '.join(pair)}, reduced α_max over full, after iteration {EARLY}"
    if not (sizes[True] and sizes[False]):
        return [adapts, shown_row(label, "", None, [0.0], "no iterations of both kinds")]
    ratio = statistics.fmean(sizes[True]) / max(statistics.fmean(sizes[False]), 1e-12)
    rule = "a smaller α_max dampens the oscillation: their increments are smaller than at full α_max"
    return [adapts, claim_row(label, "", _paper_ratio(), [ratio], ratio < 1, rule)]


def _paper_ratio() -> float:
    sizes = (np.abs(np.diff(PAPER["first"])) + np.abs(np.diff(PAPER["second"]))) / 2
    # Iteration 7 is the first with a reduced α_max.
    return float(sizes[6:].mean() / sizes[EARLY:6].mean())


def draw(measured: dict[str, Sequence[Measured]]) -> "Figure":
    """Draw four columns of table 5 by iteration: each split, and the paper's."""
    runs = measured["cifar10"]
    pair = watched(runs, PAIR)
    traces = [trace(run, pair) for run in runs]
    figure, axes = new_figure(2, 2, size=(10, 7))
    shown = (("sigma", "σ", "pp"), ("alpha_max", "α_max", ""), ("first", pair[0], "%"), ("second", pair[1], "%"))
    for own, (key, title, unit) in zip(axes, shown, strict=True):
        _draw_column(own, traces, key, pair == list(PAIR) or key in LABELS)
        own.set(title=title, xlabel="iteration", ylabel=unit)
    axes[0].legend(frameon=False, fontsize=9)
    return figure


def _draw_column(axes: "Axes", traces: Sequence[Trace], key: str, with_paper: bool) -> None:
    columns = [own.columns[key] for own in traces]
    for place, column in enumerate(columns):
        axes.plot(column, color=GREY, alpha=0.6, label=None if place else "each split")
    shortest = min(len(column) for column in columns)
    axes.plot(np.mean([column[:shortest] for column in columns], axis=0), "o-", color=BLUE, label="mean")
    if with_paper:
        axes.plot(PAPER[key], "x--", color=VERMILION, label="the paper")


ITEM = Item("iterations", ("cifar10",), measure, rows, draw)
