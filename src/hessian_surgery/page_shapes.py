"""What the JSON files of comparisons, diagnoses and studies hold, as far as they are read back."""

from typing import NotRequired, TypedDict

from hessian_surgery.file_shapes import Noun, PartShape


class DifferenceShape(TypedDict):
    """A difference with its interval."""

    difference: float
    interval: tuple[float, float]


LossShape = TypedDict("LossShape", {"loss": float, "class": str})


class RowShape(TypedDict):
    """A method at a budget; without figures if it failed."""

    name: str
    budget: float | None
    splits: int
    delta_accuracy: float | None
    sigma: float | None
    sigma_se: float | None
    worst: float | None
    balanced_accuracy: float | None
    paired_vs_class_bias: DifferenceShape | None
    sigma_change: NotRequired[DifferenceShape | None]
    largest_loss: NotRequired[LossShape | None]
    unlimited: NotRequired[str | None]
    standing: NotRequired[str]
    reason: str | None
    failed_splits: list[int]


class BaseShape(TypedDict):
    """The model as it is, of a comparison."""

    accuracy: float
    sigma: float
    worst: float
    balanced_accuracy: float
    sigma_corrected: NotRequired[float]


class TermsShape(TypedDict):
    """Goal and limits of a comparison, in words."""

    sentence: str
    note: str


class SentenceShape(TypedDict):
    """Advice, or a forecast."""

    sentence: str


class PageShape(TypedDict):
    """What the pages of comparisons and diagnoses need beside the figures."""

    noun: NotRequired[Noun]
    date: NotRequired[str]
    model: NotRequired[str]
    data: NotRequired[dict[str, PartShape]]
    inputs: dict[str, str]
    environment: dict[str, str | int]
    seconds: NotRequired[float]
    seed: int


class CompareShape(TypedDict):
    """What `compare --json` prints, of any version, as far as it is figures."""

    classes: list[str]
    images: int
    headline: float
    base: BaseShape
    methods: list[RowShape]
    bias_shares: dict[str, list[float]]


class ComparePageShape(CompareShape, PageShape):
    """`compare.json`."""

    splits: int
    asked: NotRequired[TermsShape]
    advice: SentenceShape
    warnings: NotRequired[list[str]]
    hashes: NotRequired[dict[str, str]]


class MetricsShape(TypedDict):
    """All metrics of a model."""

    accuracy: float
    balanced_accuracy: float
    sigma: float
    worst: float
    per_class: list[float]
    count: list[int]
    interval: list[tuple[float, float]]


class StructureShape(TypedDict):
    """The structure of S."""

    effective_rank: float
    singular_values: list[float]
    entangled: list[tuple[str, str]]


class DiagnosisShape(TypedDict):
    """What `diagnose --json` prints, of any version, as far as it is figures."""

    classes: list[str]
    metrics: MetricsShape
    error_ratio: float
    exponent: float
    structure: NotRequired[StructureShape]


class DiagnosisPageShape(DiagnosisShape, PageShape):
    """`diagnosis.json`."""

    forecast: NotRequired[SentenceShape | None]
    advice: str
    warnings: list[str]
    hashes: dict[str, str]
    eigenvalues: NotRequired[list[float]]
    residuals: NotRequired[list[float]]
    sensitivity: NotRequired[list[list[float]]]
    tolerance: NotRequired[float]


class EstimateShape(TypedDict):
    """A figure and its standard error."""

    value: float
    error: float | None


class CaseShape(TypedDict):
    """One model of a study of predictors."""

    name: str
    group: str
    images: int
    predictors: dict[str, float]
    gains: dict[str, EstimateShape]
    delta_accuracy: float


class PredictorsShape(TypedDict):
    """`predictors.json`."""

    method: str
    cases: list[CaseShape]
