"""What the JSON files of a run hold, as far as they are read back; `stored.py` checks them.

A key that runs of earlier versions lack is not required. More keys are allowed.
"""

from typing import Literal, NotRequired, TypedDict

Noun = Literal["images", "texts", "samples"]
Criterion = Literal["minimum_accuracy", "maximum_drop"]


class PartShape(TypedDict):
    """A part of the data."""

    images: int
    sha256: str | None


class AskedShape(TypedDict):
    """What an operation was asked for (`Asked`)."""

    aim: Literal["sigma", "worst"]
    budget: float | None
    targets: dict[str, float]
    limits: dict[str, float]


class GroupShape(TypedDict):
    """A group of tensors with changed weights."""

    name: str
    weights: int
    of: int


class ChangedShape(TypedDict):
    """Which weights changed (`WeightChanges`)."""

    weights: int
    of: int
    groups: list[GroupShape]
    patch_bytes: int | None


class TemperatureShape(TypedDict):
    """What the head was divided by."""

    temperature: float


class BiasesShape(TypedDict):
    """The class bias beside a step."""

    biases: list[float]


# A checked criterion has a key that is no name in Python.
CheckedShape = TypedDict(
    "CheckedShape",
    {
        "class": str,
        "criterion": Criterion,
        "asked": float,
        "measured": float,
        "interval": tuple[float, float],
        "met": bool,
        "advice": NotRequired[str | None],
    },
)


class CriteriaShape(TypedDict):
    """Acceptance criteria as they were given."""

    every: dict[Criterion, float | None]
    classes: dict[str, dict[Criterion, float | None]]


class AcceptanceShape(TypedDict):
    """Acceptance criteria, and which failed."""

    criteria: CriteriaShape
    failed: list[str]
    checked: NotRequired[list[CheckedShape]]


class ResponsesShape(TypedDict):
    """How classes respond to directions."""

    directions: list[str]
    unit: Literal["coefficient", "length"]
    values: list[list[float]]


class IterationShape(TypedDict):
    """One iteration, of either algorithm."""

    iteration: int
    accepted: bool
    eigenvalues: list[float]
    residuals: list[float]
    coefficients: list[float]
    responses: ResponsesShape
    candidate_sigma: float
    sigma: float
    accuracy: float
    worst: float
    seconds: dict[str, float]
    fold: int | None
    length: NotRequired[float]
    alpha_max: NotRequired[float]


class StartShape(TypedDict):
    """The model as it is, of a front."""

    accuracy: float
    sigma: float
    per_class: list[float]


class PointShape(StartShape):
    """A point of a predicted front."""

    objective: Literal["sigma", "worst"]
    budget: float
    low: list[float]
    high: list[float]


class FrontShape(TypedDict):
    """A predicted front."""

    protected: list[int]
    points: list[PointShape]
    base: StartShape


class SplitShape(TypedDict):
    """How images were divided."""

    folds: NotRequired[int | None]
    compared: NotRequired[int]
    training: NotRequired[int]


class SigmaShape(TypedDict):
    """Metrics of which only σ is read."""

    sigma: float


class ResultShape(TypedDict):
    """`result.json`."""

    schema_version: int
    date: NotRequired[str]
    asked: AskedShape
    changed: NotRequired[ChangedShape | None]
    recalibrated: NotRequired[TemperatureShape | None]
    simpler: NotRequired[BiasesShape | None]
    warnings: list[str]
    noun: NotRequired[Noun]
    acceptance: AcceptanceShape | None
    model: NotRequired[str]
    data: NotRequired[dict[str, PartShape]]
    classes: list[str]
    seed: int
    before: dict[Literal["calibration", "heldout"], SigmaShape]
    iterations: list[IterationShape]
    ended: str
    front: FrontShape | None
    split: SplitShape
    seconds: NotRequired[float]
    environment: dict[str, str | int]


class ToleranceShape(TypedDict):
    """How spikes are sought, of which only the tolerance is read."""

    tolerance: float


class ConfigShape(TypedDict):
    """`config.json`."""

    target: str
    budget: NotRequired[float | None]
    search: ToleranceShape
    inputs: dict[str, str | int | float]
