"""Figure 2: the sensitivity matrix S at the starting weights, and what the paper reads off it."""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hessian_surgery.paper.presets import paper_config
from hessian_surgery.paper.sensitivity import accuracies, probe_answers, sensitivity_from_answers
from hessian_surgery.report.figure_style import new_figure
from hessian_surgery.reproduce.item import Item, Measured
from hessian_surgery.reproduce.row import Row, claim_row, mean_interval, shown_row
from hessian_surgery.reproduce.workbench import Workbench
from hessian_surgery.studies.effective_rank import resample
from hessian_surgery.studies.study_inputs import open_calibration_data, open_finder
from hessian_surgery.types import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Sections 6.1 and 7.4: entries of S by spike (from 1) and class. The first sets its row's sign.
PAPER = {
    1: {"cat": 3.7, "frog": 3.5, "dog": 2.0, "airplane": -1.2, "horse": -1.6},
    2: {"dog": -2.7, "deer": 1.9},
    4: {"cat": 1.6, "dog": -1.9},
}
PAPER_LAMBDA = 556.0
EPSILON = 0.02
COUPLED = ("cat", "dog")
OTHER = "another network; fractions per unit of amplitude (the caption's % would be below one image)"


def measure(bench: Workbench, split: int) -> Measured:
    """S on the calibration half by central differences, and the noise of its images."""
    parts = bench.parts(split)
    model = bench.model()
    finder = open_finder(model, parts.training, paper_config().search, "*", split)
    data = open_calibration_data(model, parts.calibration)
    spectrum = finder.find()
    correct = probe_answers(finder.classifier, spectrum, data, EPSILON)
    labels = data.labels.numpy()
    matrix = sensitivity_from_answers(correct, labels, len(data.classes), EPSILON)
    drawn = resample(correct, labels, len(data.classes), EPSILON, bench.number(1000, 100), split)
    accuracy = accuracies(finder.classifier, data)
    return {
        "classes": list(data.classes),
        "eigenvalues": spectrum.eigenvalues.tolist(),
        "sensitivity": matrix.tolist(),
        "accuracy": accuracy.tolist(),
    } | findings(matrix, drawn, accuracy, data.classes)


def findings(matrix: Array, drawn: Array, accuracy: Array, classes: Sequence[str]) -> dict[str, Any]:
    """What is said of S (K, C), with 95 % intervals from resampled ones (B, K, C).

    Returns:
        `polarised`: bounds of the leading spike's entries, for all classes together. `error_size`:
        correlation of a class's error with the size of its column. `coupled`: cosine of the columns
        of two classes.
    """
    error = 1 - accuracy
    pair = coupled(accuracy, classes)
    # 95 % for all classes together (Bonferroni).
    tail = 0.025 / len(classes)
    bounds = np.quantile(drawn[:, 0], [tail, 1 - tail], axis=0)
    sizes = [correlation(error, column_sizes(one)) for one in drawn]
    cosines = [cosine(one[:, pair[0]], one[:, pair[1]]) for one in drawn]
    columns = matrix[:, list(pair)]
    return {
        "polarised": bounds.tolist(),
        "error_size": {
            "value": correlation(error, column_sizes(matrix)),
            "interval": _interval(sizes),
            "less_noise": correlation(error, column_sizes(matrix, drawn.var(axis=0))),
        },
        "coupled": {
            "classes": [classes[j] for j in pair],
            "value": cosine(columns[:, 0], columns[:, 1]),
            "interval": _interval(cosines),
            "opposite": int((columns[:, 0] * columns[:, 1] < 0).sum()),
        },
    }


def coupled(accuracy: Array, classes: Sequence[str]) -> tuple[int, int]:
    """Cat and dog, or the two weakest classes if there are none."""
    if set(COUPLED) <= set(classes):
        return classes.index(COUPLED[0]), classes.index(COUPLED[1])
    weakest = np.argsort(accuracy)[:2].tolist()
    return weakest[0], weakest[1]


def column_sizes(matrix: Array, noise: Array | float = 0.0) -> Array:
    """The root mean square (C,) of each column of S (K, C), less the variance (K, C) of noise."""
    return np.asarray(np.sqrt((np.square(matrix) - noise).mean(axis=0).clip(min=0)))


def correlation(first: Array, second: Array) -> float:
    """Pearson's r of two vectors; 0 if one of them is constant."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def cosine(first: Array, second: Array) -> float:
    """The cosine of two columns, which a spike's sign does not change; 0 if one of them is 0."""
    length = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / length if length > 0 else 0.0


def _interval(values: Sequence[float]) -> list[float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return [float(low), float(high)]


def rows(measured: dict[str, Sequence[Measured]]) -> list[Row]:
    """The entries that the paper quotes, and its sentences about S."""
    found = measured["cifar10"]
    return [
        shown_row("λ₁ of this run", "", PAPER_LAMBDA, [one["eigenvalues"][0] for one in found], OTHER),
        *_entries(found),
        *_dominant(found),
        *_structure(found),
    ]


def _entries(found: Sequence[Measured]) -> list[Row]:
    """The quoted entries; spikes are turned so that the first of a row has the paper's sign."""
    shown = []
    for spike, entries in PAPER.items():
        known = [name for name in entries if name in found[0]["classes"]]
        for name in known:
            ours = [turned(one, spike - 1, known[0], entries[known[0]])[name] for one in found]
            shown.append(shown_row(f"S of spike {spike}, {name}", "", entries[name], ours, OTHER))
    return shown


def turned(one: Measured, spike: int, name: str, sign: float) -> dict[str, float]:
    """A row of S by class, turned so that one entry has this sign: spikes have no sign."""
    entries = dict(zip(one["classes"], one["sensitivity"][spike], strict=True))
    turn = 1 if entries[name] * sign >= 0 else -1
    return {key: turn * value for key, value in entries.items()}


def _dominant(found: Sequence[Measured]) -> list[Row]:
    both = [_both_signs(one["polarised"]) for one in found]
    against = [100 * opposition(one["sensitivity"][0]) for one in found]
    weak = [float(_weak_in_lead(one)) for one in found]
    return [
        claim_row(
            "spike 1: largest entry of the other sign over the largest",
            "%",
            100 * opposition(list(PAPER[1].values())),
            against,
            all(both),
            "the dominant spike is polarised: one class rises and another falls, each beyond the noise "
            "of all classes together, on every split",
        ),
        claim_row(
            "spike 1: of the two weakest classes, among the three with the largest entries",
            "",
            2.0,
            weak,
            statistics.fmean(weak) > 1.5,
            "the dominant spike moves the weakest classes most: both are among the three, on most splits",
        ),
    ]


def _both_signs(bounds: Sequence[Sequence[float]]) -> bool:
    return max(bounds[0]) > 0 and min(bounds[1]) < 0


def opposition(entries: Sequence[float]) -> float:
    """The largest entry of the lesser sign over that of the other, 0 to 1."""
    ends = sorted((max(0.0, max(entries)), max(0.0, -min(entries))))
    return ends[0] / ends[1] if ends[1] > 0 else 0.0


def _weak_in_lead(one: Measured) -> int:
    """How many of the two weakest classes have one of spike 1's three largest entries."""
    weakest = np.argsort(one["accuracy"])[:2].tolist()
    leading = np.argsort(-np.abs(one["sensitivity"][0]))[:3].tolist()
    return len(set(weakest) & set(leading))


def _structure(found: Sequence[Measured]) -> list[Row]:
    sizes = mean_interval([one["error_size"]["interval"] for one in found])
    pairs = mean_interval([one["coupled"]["interval"] for one in found])
    names = " and ".join(found[0]["coupled"]["classes"])
    return [
        claim_row(
            "correlation of a class's error with the size of its column of S",
            "",
            None,
            [one["error_size"]["value"] for one in found],
            sizes[0] > 0,
            "the weakest classes are the most sensitive: the interval of r is above 0",
            sizes,
        ),
        shown_row(
            "the same, less the noise of S",
            "",
            None,
            [one["error_size"]["less_noise"] for one in found],
            "a control: images near a boundary make noise, and weak classes have more of them",
        ),
        claim_row(
            f"cosine of the columns of {names} over spikes",
            "",
            None,
            [one["coupled"]["value"] for one in found],
            pairs[1] < 0,
            "cat and dog are anti-correlated over spikes: the interval is below 0",
            pairs,
        ),
        shown_row(
            f"spikes that move {names} in opposite directions, of {len(found[0]['eigenvalues'])}",
            "",
            None,
            [one["coupled"]["opposite"] for one in found],
            "the paper names one spike, the fourth",
        ),
    ]


def draw(measured: dict[str, Sequence[Measured]]) -> "Figure":
    """Draw S of the first split: red where +q improves a class, blue where it harms it."""
    found = measured["cifar10"][0]
    matrix = np.array(found["sensitivity"])
    figure, (axes,) = new_figure(size=(9, 5))
    most = float(np.abs(matrix).max()) or 1.0
    image = axes.imshow(matrix, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
    for (i, j), value in np.ndenumerate(matrix):
        colour = "white" if abs(value) > 0.6 * most else "black"
        axes.text(j, i, f"{value:+.1f}", ha="center", va="center", fontsize=8, color=colour)
    axes.set_xticks(range(len(found["classes"])), found["classes"], rotation=30, ha="right")
    labels = [f"{i} (λ = {value:.3g})" for i, value in enumerate(found["eigenvalues"], 1)]
    axes.set_yticks(range(len(labels)), labels)
    axes.set(title="Sensitivity S", ylabel="spike")
    axes.grid(False)
    figure.colorbar(image, ax=axes, label="change of accuracy (fraction) per unit of amplitude")
    return figure


ITEM = Item("sensitivity-matrix", ("cifar10",), measure, rows, draw)
