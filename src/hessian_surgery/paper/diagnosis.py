"""Diagnosis: is there anything to gain? One forward pass tells, and spikes on demand."""

from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
from torch import nn

from hessian_surgery.data.data_hash import data_hash
from hessian_surgery.data.labelled import Data, LabelledSet, Noun, as_part
from hessian_surgery.data.leaks import find_shared_images, hash_part, hash_training
from hessian_surgery.errors import InputError, require
from hessian_surgery.evidence.effective_rank import SensitivityStructure, analyse
from hessian_surgery.evidence.metrics import Metrics, compute_metrics, sampling_sigma
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import Answers
from hessian_surgery.model.passes import for_one_pass
from hessian_surgery.operation.config import OperationConfig, SurgeryConfig, as_surgery
from hessian_surgery.operation.expected import expected_diagnosis
from hessian_surgery.operation.forecast import Forecast, make_forecast
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.problem import Problem, check_inputs, measure_start
from hessian_surgery.operation.progress import watched
from hessian_surgery.operation.warnings import convergence_warning, cut_off_warning, rare_class_warning, swapped_warning
from hessian_surgery.paper.amplitude import curvature_amplitude
from hessian_surgery.paper.config import LoopConfig, as_loop
from hessian_surgery.paper.loop import find_sensitivity, finder_of
from hessian_surgery.paper.plan import error_ratio, recommended_exponent
from hessian_surgery.plain_modes import in_plain_modes
from hessian_surgery.short_repr import short_repr

# How many spikes to find: a number, or C − 1 for C classes, at most 99.
Spikes: TypeAlias = int | Literal["auto"]

# Both come from the ten-class models of docs/evidence/predictors.md. A gain shows if σ is above its
# sampling noise by this factor. With more classes σ is known better: less is enough.
ABOVE_NOISE = 2.0
MODEL_CLASSES = 10
# If the effective rank is a smaller share of the singular values of S than this, little of σ went.
FEW_AXES = 0.45


@dataclass(frozen=True)
class SpikeDiagnosis:
    """What the spikes at the present weights would do (the paper's section 10).

    Attributes:
        eigenvalues: of the spikes.
        residuals: relative residual of each.
        sensitivity: S (K rows of C), fractions per unit of amplitude.
        epsilon: the probe's amplitude.
        structure: see `SensitivityStructure`.

    Example:
        >>> parts = {"training_data": train, "calibration_data": calibration}
        >>> found = hs.diagnose(model, **parts, spikes="auto")
        >>> len(found.spikes.eigenvalues) == len(found.spikes.residuals)
        True
    """

    eigenvalues: list[float]
    residuals: list[float]
    sensitivity: list[list[float]]
    epsilon: float
    structure: SensitivityStructure


@dataclass(frozen=True)
class Diagnosis:
    """What is known before operating.

    Attributes:
        classes: class names.
        metrics: of the model on the calibration data.
        forecast: what `operate` would reach at least.
        error_ratio: the largest class error over the smallest.
        exponent: p by the p-rule.
        advice: a sentence or three.
        warnings: what limits what can be said.
        date: when it was made, UTC.
        model: the module's class.
        data: of the calibration images: how many `images`, and their hash (`sha256`).
        noun: what samples are called: "images", "texts" or "samples".
        spikes: None if they were not asked for.

    Example:
        >>> found = hs.diagnose(model, training_data=train, calibration_data=calibration)
        >>> found.advice.partition(":")[0]
        'Worth a comparison'
        >>> found.rows()[0]["accuracy"] == found.metrics.worst
        True
    """

    classes: tuple[str, ...]
    metrics: Metrics
    forecast: Forecast
    error_ratio: float
    exponent: float
    advice: str
    warnings: tuple[str, ...]
    date: str
    model: str
    data: dict[str, dict[str, Any]]
    noun: Noun = "images"
    spikes: SpikeDiagnosis | None = None

    __repr__ = short_repr

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each class, the weakest first: `class`, `count` and `accuracy`, a fraction."""
        known = zip(self.classes, self.metrics.count, self.metrics.per_class, strict=True)
        found = [{"class": name, "count": count, "accuracy": accuracy} for name, count, accuracy in known]
        return sorted(found, key=lambda row: row["accuracy"])

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what is known of spikes is beside the rest."""
        spikes = {} if self.spikes is None else asdict(self.spikes)
        forecast = self.forecast.as_dict()
        plain = asdict(replace(self, spikes=None)) | {"forecast": forecast}
        del plain["spikes"]
        return plain | spikes


@in_plain_modes
def diagnose(
    model: nn.Module | Classifier,
    *,
    training_data: Data,
    calibration_data: Data,
    config: OperationConfig | None = None,
    spikes: Spikes | None = None,
    epsilon: float | None = None,
    observer: Observer | None = None,
    progress: bool = False,
) -> Diagnosis:
    """Find out whether an operation has anything to gain; change nothing.

    It takes one forward pass over the calibration images; spikes take Hessian products as well.

    Args:
        model: the trained classifier.
        training_data: images that the model was trained on: their classes are counted, they are
            compared with the calibration images if they are in memory, and spikes have their
            Hessian batch from them.
        calibration_data: images that the class accuracies are measured on.
        config: as for `operate`: the goal that is forecast, and how spikes are sought.
        spikes: how many spikes to find and probe: a number, or "auto" for as many as the config
            says; by default none.
        epsilon: the probe's amplitude, with spikes; by default the loop's first amplitude.
        observer: told about progress.
        progress: show a bar on stderr, or a line now and then where that is no terminal.

    Example:
        >>> found = hs.diagnose(model, training_data=train, calibration_data=calibration)
        >>> found.metrics.worst < 0.5
        True
    """
    if spikes is None and epsilon is not None:
        raise InputError(f"epsilon: got {epsilon:g}, but no spikes are probed; give spikes as well")
    require(not isinstance(spikes, bool), "spikes", spikes, "a number, 'auto', or None")
    config = config or SurgeryConfig()
    goal = as_surgery(config)
    calibration = as_part(calibration_data, "calibration_data")
    goal.check_classes(calibration.classes)
    training = as_part(training_data, "training_data")
    probing = goal if spikes is None else probing_config(config, spikes)
    with watched(observer, progress) as observer:
        inputs = check_inputs(model, training, calibration, probing, directions=spikes is not None)
        observer.expect(partial(expected_diagnosis, inputs, training))
        observer.stage("prepare", 0, 1)
        passes = for_one_pass(inputs.classifier, config.batch_size) if spikes is None else None
        problem, before = measure_start(inputs, passes)
        probed = None if spikes is None else _probe(problem, epsilon, observer)
        observer.stage("forecast", 0, 1)
        return _describe(problem, before, goal, probed, training)


def _describe(
    problem: Problem[Any], before: Answers, goal: SurgeryConfig, found: SpikeDiagnosis | None, training: LabelledSet
) -> Diagnosis:
    """All that is known of a measured model, and of its spikes if they were sought."""
    data = problem.calibration_data
    hashed = hash_part(data, "calibration_data")
    # Training images are compared where they are in memory.
    leak = find_shared_images(hash_training(training, []), hashed)
    metrics = compute_metrics(before.predicted, data.labels, len(data.classes))
    count = np.array(metrics.count, dtype=np.float64)
    loose = None if found is None else convergence_warning([found.residuals], goal.search.tolerance)
    warnings = (
        None if leak is None else leak.sentence,
        loose,
        swapped_warning(before.predicted, data.labels, data.classes),
        rare_class_warning(data, "calibration"),
        cut_off_warning({"calibration": data}),
    )
    return Diagnosis(
        classes=data.classes,
        metrics=metrics,
        forecast=make_forecast(replace(problem, config=goal)),
        error_ratio=error_ratio(problem.base, count),
        exponent=recommended_exponent(problem.base, count, goal.target),
        advice=recommend(metrics, None if found is None else found.structure),
        warnings=problem.notes + tuple(warning for warning in warnings if warning),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        model=type(problem.classifier.module).__name__,
        data={"calibration": {"images": len(data), "sha256": data_hash(data, hashed.hashes)}},
        noun=data.noun,
        spikes=found,
    )


def probing_config(config: OperationConfig, spikes: Spikes) -> LoopConfig:
    """The loop's config that finds so many spikes."""
    loop = as_loop(config)
    return loop if spikes == "auto" else replace(loop, search=replace(loop.search, spikes=spikes))


def _probe(problem: Problem[Any], epsilon: float | None, observer: Observer) -> SpikeDiagnosis:
    """Find the spikes, and measure how the classes respond to them."""
    finder = finder_of(problem)
    observer.remark(finder.describe())
    observer.stage("spikes", 0, 1)
    spectrum = finder.find(iteration=1, progress=partial(observer.stage, "spikes"))
    if epsilon is None:
        epsilon = problem.config.amplitude or curvature_amplitude(float(spectrum.eigenvalues[0]))
    matrix = find_sensitivity(problem, spectrum, epsilon, observer)
    return SpikeDiagnosis(
        eigenvalues=spectrum.eigenvalues.tolist(),
        residuals=spectrum.residuals.tolist(),
        sensitivity=matrix.tolist(),
        epsilon=epsilon,
        structure=analyse(matrix, problem.calibration_data.classes),
    )


def above_noise(classes: int) -> float:
    """The factor by which σ must be above its sampling noise: σ² is known to √(2 / (C − 1))."""
    known_better = np.sqrt((MODEL_CLASSES - 1) / max(1, classes - 1))
    return float(np.sqrt(1 + (ABOVE_NOISE**2 - 1) * min(1.0, known_better)))


def recommend(metrics: Metrics, structure: SensitivityStructure | None = None) -> str:
    """Say in one to three sentences whether there is anything to gain.

    The ratio of σ to its sampling noise predicts how far σ falls. The effective rank of S, if it is
    known, says something about the share of σ that goes. The p-rule and bias-R² predict nothing,
    and nothing predicts whether a class bias will be beaten (docs/evidence/predictors.md).
    """
    accuracy = np.array(metrics.per_class)
    count = np.array(metrics.count, dtype=np.float64)
    noise = sampling_sigma(accuracy, count)
    spread = f"σ is {100 * metrics.sigma:.1f} pp, where sampling alone gives about {100 * noise:.1f}"
    unmoved = structure is not None and structure.frobenius == 0
    chance = 1 / len(accuracy)
    lost = int((accuracy < chance).sum())
    if unmoved or metrics.balanced_accuracy < 1.2 * chance or lost >= len(accuracy) / 2:
        why = "no class responds to any spike" if unmoved else f"{lost} of {len(accuracy)} classes are below chance"
        return (
            f"Look at the inputs first: balanced accuracy is {100 * metrics.balanced_accuracy:.0f} %, and {why}; "
            "check checkpoint, normalisation, size of the inputs and the order of the classes."
        )
    if metrics.sigma < above_noise(len(accuracy)) * noise:
        return f"Hardly worth operating: {spread}; this close to noise, gains were mostly lost in it."
    return (
        f"Worth a comparison: {spread}.{_few_axes(structure)} Nobody can say beforehand whether operate "
        "gains more than class biases do: hessian-surgery compare measures it."
    )


def _few_axes(structure: SensitivityStructure | None) -> str:
    """What few axes to move along mean, if there are few."""
    axes = 0 if structure is None else len(structure.singular_values)
    if structure is None or structure.effective_rank >= FEW_AXES * axes:
        return ""
    return f" Few axes to move along (effective rank {structure.effective_rank:.1f} of {axes}): expect a smaller gain."
