"""What is recorded of each iteration: a line of `history.jsonl`, an entry of `result.json`."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from hessian_surgery.evidence.deciles import MANY_CLASSES
from hessian_surgery.short_repr import short_repr
from hessian_surgery.type_check import built
from hessian_surgery.types import Array


@dataclass(frozen=True)
class Responses:
    """How each class's accuracy responds to each direction.

    Attributes:
        directions: a label for each of the K directions.
        unit: what a row counts along: a direction's "coefficient", or the step's "length" in weight
            space.
        values: K rows of C, as fractions of accuracy per unit.
    """

    directions: list[str]
    unit: Literal["coefficient", "length"]
    values: list[list[float]]

    def recorded(self, coefficients: Array) -> "Responses":
        """What a record keeps: six digits; of many classes, some directions.

        With more than `MANY_CLASSES` classes, as many directions are kept: those that the step goes
        furthest along.

        Args:
            coefficients: of the step (≥ K,); the last are those of these directions.
        """
        rows = list(range(len(self.directions)))
        if self.values and len(self.values[0]) > MANY_CLASSES:
            own = coefficients[len(coefficients) - len(rows) :]
            rows = sorted(sorted(rows, key=lambda i: -abs(own[i]))[:MANY_CLASSES])
        values = [[float(f"{value:.6g}") for value in self.values[i]] for i in rows]
        return Responses([self.directions[i] for i in rows], self.unit, values)


@dataclass(frozen=True, kw_only=True)
class IterationRecord:
    """What both algorithms record. Accuracies are on the calibration images.

    Attributes:
        iteration: its number, from 1.
        accepted: whether the step was kept.
        eigenvalues: of the spikes that were found; empty if none were sought.
        residuals: relative residual of each.
        products: Hessian products.
        coefficients: of the directions (K), as they were last tried.
        responses: how the classes respond to the directions, as far as they are kept.
        candidate_sigma: σ after the step, kept or not.
        max_drop: the largest drop of a class by the step, kept or not.
        sigma: σ after the iteration: of the step if it was kept, of the weights before it if not.
        accuracy: over all images, likewise.
        worst: the worst class's accuracy, likewise.
        per_class: class accuracies (C), likewise.
        seconds: by stage.
        fold: the fold, from 1, that the operation was done without; None if there are no folds.

    Example:
        >>> record = outcome.iterations[0]
        >>> record.iteration, record.accepted
        (1, True)
    """

    iteration: int
    accepted: bool
    eigenvalues: list[float]
    residuals: list[float]
    products: int
    coefficients: list[float]
    responses: Responses
    candidate_sigma: float
    max_drop: float
    sigma: float
    accuracy: float
    worst: float
    per_class: list[float]
    seconds: dict[str, float]
    fold: int | None = None

    __repr__ = short_repr

    @property
    def reach(self) -> float:
        """How far the weights moved or might have moved; 0 if no step was tried."""
        raise NotImplementedError

    def as_dict(self) -> dict[str, Any]:
        """The form that `history.jsonl` and `result.json` hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Self:
        """The inverse of `as_dict`."""
        return built(cls, content | {"responses": built(Responses, content["responses"], "responses")})


@dataclass(frozen=True)
class Gain:
    """How much a step improves the goal's score on images it was not fitted to.

    Attributes:
        predicted: the improvement, as a fraction.
        error: its standard error over images.
    """

    predicted: float
    error: float


@dataclass(frozen=True, kw_only=True)
class StepRecord(IterationRecord):
    """An iteration of the default operation.

    Attributes:
        predicted: class accuracies (C) predicted for images that the step was not fitted to.
        gain: what the step was predicted to gain.
        length: of the step in weight space that was tried; 0 if none was.

    Example:
        >>> record = outcome.iterations[0]
        >>> len(record.predicted), record.length > 0
        (3, True)
    """

    predicted: list[float]
    gain: Gain
    length: float

    __repr__ = short_repr

    @property
    def reach(self) -> float:
        """The length of the step that was tried; 0 if none was."""
        return self.length

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Self:
        """The inverse of `as_dict`."""
        return super().from_dict(content | {"gain": built(Gain, content["gain"], "gain")})
