"""Diagnosis: is there anything to gain? It takes one Lanczos run and one S (section 10)."""

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from hessian_surgery.data.labelled import Data
from hessian_surgery.evidence.effective_rank import SensitivityStructure, analyse
from hessian_surgery.evidence.metrics import Metrics, compute_metrics, sampling_sigma
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.operation.config import OperationConfig
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.problem import prepare
from hessian_surgery.operation.warnings import convergence_warning, rare_class_warning
from hessian_surgery.paper.amplitude import curvature_amplitude
from hessian_surgery.paper.config import LoopConfig, as_loop
from hessian_surgery.paper.loop import find_sensitivity, finder_of
from hessian_surgery.paper.plan import error_ratio, recommended_exponent

# Both come from the ten-class models of docs/evidence/predictors.md. A gain shows if σ is above its
# sampling noise by this factor. With more classes σ is known better: less is enough.
ABOVE_NOISE = 2.0
MODEL_CLASSES = 10
# If the effective rank is a smaller share of the singular values of S than this, little of σ went.
FEW_AXES = 0.45


@dataclass(frozen=True)
class Diagnosis:
    """What is known before operating.

    Attributes:
        classes: class names.
        metrics: of the model on the calibration data.
        eigenvalues: of the spikes.
        residuals: relative residual of each.
        sensitivity: S (K rows of C), fractions per unit of amplitude.
        epsilon: the probe's amplitude.
        structure: see `SensitivityStructure`.
        error_ratio: the largest class error over the smallest.
        exponent: p by the p-rule.
        advice: a sentence or three.
        warnings: what limits what can be said.
    """

    classes: tuple[str, ...]
    metrics: Metrics
    eigenvalues: list[float]
    residuals: list[float]
    sensitivity: list[list[float]]
    epsilon: float
    structure: SensitivityStructure
    error_ratio: float
    exponent: float
    advice: str
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def diagnose(
    model: nn.Module | Classifier,
    *,
    training_data: Data,
    calibration_data: Data,
    config: OperationConfig | None = None,
    epsilon: float | None = None,
    observer: Observer | None = None,
) -> Diagnosis:
    """Find out whether an operation has anything to gain; change nothing.

    Args:
        model: the trained classifier.
        training_data: images that the model was trained on, for the Hessian batch.
        calibration_data: images that the class accuracies are measured on.
        config: as for `operate`; only how spikes and S are found plays a part.
        epsilon: the probe's amplitude; by default the loop's first amplitude.
        observer: told about progress.
    """
    observer = observer or Observer()
    config = LoopConfig() if config is None else as_loop(config)
    problem, before = prepare(model, training_data, calibration_data, config)
    data = problem.calibration_data
    finder = finder_of(problem)
    observer.remark(finder.describe())
    spectrum = finder.find(iteration=1, progress=partial(observer.stage, "spikes"))
    if epsilon is None:
        epsilon = config.amplitude or curvature_amplitude(float(spectrum.eigenvalues[0]))
    matrix = find_sensitivity(problem, spectrum, epsilon, observer)
    structure = analyse(matrix, data.classes)
    metrics = compute_metrics(before.predicted, data.labels, len(data.classes))
    count = np.array(metrics.count, dtype=np.float64)
    warnings = [
        convergence_warning([spectrum.residuals.tolist()], spectrum.tolerance),
        rare_class_warning(data, "calibration"),
    ]
    return Diagnosis(
        classes=data.classes,
        metrics=metrics,
        eigenvalues=spectrum.eigenvalues.tolist(),
        residuals=spectrum.residuals.tolist(),
        sensitivity=matrix.tolist(),
        epsilon=epsilon,
        structure=structure,
        error_ratio=error_ratio(problem.base, count),
        exponent=recommended_exponent(problem.base, count, config.target),
        advice=recommend(metrics, structure),
        warnings=problem.notes + tuple(warning for warning in warnings if warning),
    )


def above_noise(classes: int) -> float:
    """The factor by which σ must be above its sampling noise: σ² is known to √(2 / (C − 1))."""
    known_better = np.sqrt((MODEL_CLASSES - 1) / max(1, classes - 1))
    return float(np.sqrt(1 + (ABOVE_NOISE**2 - 1) * min(1.0, known_better)))


def recommend(metrics: Metrics, structure: SensitivityStructure) -> str:
    """Say in one to three sentences whether there is anything to gain.

    The ratio of σ to its sampling noise predicts how far σ falls. The effective rank of S says
    something about the share of σ that goes. The p-rule and bias-R² predict nothing, and nothing
    predicts whether a class bias will be beaten (docs/evidence/predictors.md).
    """
    accuracy = np.array(metrics.per_class)
    count = np.array(metrics.count, dtype=np.float64)
    noise = sampling_sigma(accuracy, count)
    spread = f"σ is {100 * metrics.sigma:.1f} pp, where sampling alone gives about {100 * noise:.1f}"
    if structure.frobenius == 0 or metrics.balanced_accuracy < 1.2 / len(accuracy):
        return (
            f"Look at the inputs first: balanced accuracy is {100 * metrics.balanced_accuracy:.0f} %, near chance, or "
            "no class responds to any spike; check checkpoint, normalisation, image size and the order of the classes."
        )
    if metrics.sigma < above_noise(len(accuracy)) * noise:
        return f"Hardly worth operating: {spread}; this close to noise, gains were mostly lost in it."
    axes = len(structure.singular_values)
    few = f" Few axes to move along (effective rank {structure.effective_rank:.1f} of {axes}): expect a smaller gain."
    return (
        f"Worth a comparison: {spread}.{few if structure.effective_rank < FEW_AXES * axes else ''} Nobody can say "
        "beforehand how much goes, or whether a class bias does as well: hessian-surgery compare measures it."
    )
