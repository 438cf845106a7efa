"""What each figure shows, computed once for the page (`page_charts`) and files (`figure_files`)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hessian_surgery.directions.family import numbered
from hessian_surgery.evidence.deciles import MANY_CLASSES

# Methods that change no answer: their point is that of the model as it is.
UNSEEN = ("nothing", "temperature")
# What a front shows against the change of accuracy, and the label of its axis.
FRONT_LABELS = {"sigma": "σ of class accuracies (pp)", "worst": "worst class (%)"}
# Zero has no place on a logarithmic axis; smaller values are drawn here.
LEAST = 1e-12


def weakest_first(per_class: Sequence[float]) -> list[int]:
    """Positions of the classes, lowest accuracy first."""
    return sorted(range(len(per_class)), key=lambda j: per_class[j])


@dataclass(frozen=True)
class Responses:
    """How the accuracy of each class responds to a step along each direction.

    Attributes:
        directions: a label for each row.
        classes: class names, one for each column.
        values: K rows of C, in percentage points per 0.01 of the unit.
        unit: "coefficient" of the direction, or "length" of the step in weight space.
        of_directions: how many directions there were; None if all are here.
        of_classes: how many classes there were; None if all are here.
    """

    directions: Sequence[str]
    classes: Sequence[str]
    values: Sequence[Sequence[float]]
    unit: str
    of_directions: int | None = None
    of_classes: int | None = None

    @property
    def largest(self) -> float:
        """The largest absolute value; 1 if all are 0."""
        return max(abs(value) for row in self.values for value in row) or 1.0


def leading_responses(responses: Responses) -> Responses:
    """Of many classes, those that respond most to some direction, in their order."""
    total = len(responses.classes)
    if total <= MANY_CLASSES:
        return responses
    values = np.array(responses.values)
    chosen = np.sort(np.argsort(-np.abs(values).max(axis=0), kind="stable")[:MANY_CLASSES])
    names = [responses.classes[j] for j in chosen]
    return replace(responses, classes=names, values=values[:, chosen].tolist(), of_classes=total)


def weakest_and_strongest(per_class: Sequence[float], most: int) -> list[int]:
    """Positions of the classes, weakest first; of many, `most` from either end."""
    order = weakest_first(per_class)
    return order if len(order) <= MANY_CLASSES else order[:most] + order[-most:]


def spike_responses(content: dict[str, Any]) -> Responses:
    """Take S of a diagnosis from the contents of `diagnosis.json`."""
    labels = numbered("spike", len(content["eigenvalues"]))
    return Responses(labels, content["classes"], content["sensitivity"], "length")


@dataclass(frozen=True)
class Spike:
    """An eigenvalue and how accurate it is.

    Attributes:
        eigenvalue: λ.
        residual: the relative residual ‖Hq − λq‖ / |λ|.
        converged: whether the residual is within the tolerance.
    """

    eigenvalue: float
    residual: float
    converged: bool

    @property
    def drawn_range(self) -> tuple[float, float, float]:
        """The least eigenvalue that the residual allows, the eigenvalue, the most; above zero."""
        drawn = max(self.eigenvalue, LEAST)
        return drawn * max(1e-9, 1 - self.residual), drawn, drawn * (1 + self.residual)

    @property
    def drawn_residual(self) -> float:
        """The residual, above zero."""
        return max(self.residual, LEAST)


def make_spikes(eigenvalues: Sequence[float], residuals: Sequence[float], tolerance: float) -> list[Spike]:
    """Pair eigenvalues with their residuals, and say which have converged."""
    pairs = zip(eigenvalues, residuals, strict=True)
    return [Spike(value, residual, residual <= tolerance) for value, residual in pairs]


def step_length(record: dict[str, Any]) -> float:
    """Say how long an iteration's step was (0 if none was tried), or in the loop, could be."""
    return record["alpha_max"] if "alpha_max" in record else record["length"]


def step_label(record: dict[str, Any]) -> str:
    """Say what `step_length` is."""
    return "amplitude" if "alpha_max" in record else "length of the step"


def iteration_outcome(record: dict[str, Any]) -> str:
    """Say what became of an iteration's step."""
    if record["accepted"]:
        return "accepted"
    return "rolled back" if step_length(record) > 0 else "no step was predicted to gain enough"


@dataclass(frozen=True)
class Convergence:
    """What T iterations did to the calibration images.

    Attributes:
        sigma: σ in pp at the start and after each iteration (T + 1).
        rolled_back: iteration, and σ in pp that it reached, of each step that was tried and undone.
        accepted: whether each iteration's step was kept (T).
        outcomes: the same in words (T).
        lengths: length or amplitude of each iteration's step (T).
        length_label: which of the two.
    """

    sigma: list[float]
    rolled_back: list[tuple[int, float]]
    accepted: list[bool]
    outcomes: list[str]
    lengths: list[float]
    length_label: str


def make_convergence(base_sigma: float, records: Sequence[dict[str, Any]]) -> Convergence:
    """Collect the iterations of a run, which started at `base_sigma` (a fraction)."""
    return Convergence(
        sigma=[100 * base_sigma, *(100 * record["sigma"] for record in records)],
        rolled_back=[
            (i, 100 * record["candidate_sigma"])
            for i, record in enumerate(records, 1)
            if not record["accepted"] and step_length(record) > 0
        ],
        accepted=[record["accepted"] for record in records],
        outcomes=[iteration_outcome(record) for record in records],
        lengths=[step_length(record) for record in records],
        length_label=step_label(records[0]),
    )


@dataclass(frozen=True)
class FrontLine:
    """One method on a front.

    Attributes:
        name: the method.
        points: change of accuracy in pp, and the figure in pp or %; most accurate first.
        errors: standard error of each figure; empty if it has none.
    """

    name: str
    points: list[tuple[float, float]]
    errors: list[float]


def front_lines(methods: Sequence[dict[str, Any]], figure: str) -> list[FrontLine]:
    """Collect the lines of a front. Methods that failed or change no answer have none.

    Args:
        methods: those of `compare.json`.
        figure: "sigma" or "worst".
    """
    lines = []
    for name in front_names(methods):
        own = [row for row in methods if row["name"] == name and row["splits"]]
        own.sort(key=lambda row: -row["delta_accuracy"])
        points = [(100 * row["delta_accuracy"], 100 * row[figure]) for row in own]
        errors = [100 * row["sigma_se"] for row in own] if figure == "sigma" else []
        lines.append(FrontLine(name, points, errors))
    return lines


def front_names(methods: Sequence[dict[str, Any]]) -> list[str]:
    """List the methods that have a line of their own, in order."""
    names = dict.fromkeys(row["name"] for row in methods if row["splits"])
    return [name for name in names if name not in UNSEEN]
