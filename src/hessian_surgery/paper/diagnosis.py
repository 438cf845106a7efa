"""Diagnosis before an operation: is there anything to gain? One Lanczos run and one S (section 10)."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import nn

from hessian_surgery.curvature.memory_plan import describe_storage
from hessian_surgery.data.labelled import Data
from hessian_surgery.evidence.effective_rank import SensitivityStructure, analyse
from hessian_surgery.evidence.metrics import Metrics, compute_metrics, sampling_sigma
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.operation.problem import convergence_warning, prepare, rare_class_warning
from hessian_surgery.paper.amplitude import curvature_amplitude
from hessian_surgery.paper.loop import Observer, curvature, find_sensitivity, find_spikes
from hessian_surgery.paper.plan import error_ratio, recommended_exponent

# Both read off the models of docs/results/predictors.md. Times its sampling noise that σ must be for a gain to show:
ABOVE_NOISE = 2.0
# Effective rank, as a share of the singular values of S, below which a small share of σ went:
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
    config: SurgeryConfig | None = None,
    epsilon: float | None = None,
    observer: Observer | None = None,
) -> Diagnosis:
    """Look, and change nothing.

    Args:
        model: the trained classifier.
        training_data: where the Hessian batch is drawn from: training images.
        calibration_data: images that the class accuracies are measured on.
        config: as for `operate`; what steers the loop plays no part.
        epsilon: the probe's amplitude; by default the amplitude that an operation would start with.
        observer: told about progress.
    """
    observer = observer or Observer()
    problem, before = prepare(model, training_data, calibration_data, config or SurgeryConfig())
    data, config = problem.calibration_data, problem.config
    observer.remark(describe_storage(problem.storage, problem.space))
    spectrum = find_spikes(problem, curvature(problem, 1), 1, observer)
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
        advice=advise(metrics, structure),
        warnings=problem.notes + tuple(warning for warning in warnings if warning),
    )


def advise(metrics: Metrics, structure: SensitivityStructure) -> str:
    """Whether there is anything to gain, and where the answer is to be had, in a sentence or three.

    The verdict rests on σ over its sampling noise, which foretells how far σ falls; the effective rank of S, which says
    something of the share of σ that goes, adds to it. The p-rule and bias-R² foretell nothing, and nothing foretells
    that a class bias will be beaten (docs/results/predictors.md).
    """
    accuracy, count = np.array(metrics.per_class), np.array(metrics.count, dtype=np.float64)
    noise = sampling_sigma(accuracy, count)
    spread = f"σ is {100 * metrics.sigma:.1f} pp, where sampling alone gives about {100 * noise:.1f}"
    if structure.frobenius == 0 or metrics.balanced_accuracy < 1.2 / len(accuracy):
        return (
            f"Look at the inputs first: balanced accuracy is {100 * metrics.balanced_accuracy:.0f} %, near chance, or "
            "no class answers to any spike; check checkpoint, normalisation, image size and the order of the classes."
        )
    if metrics.sigma < ABOVE_NOISE * noise:
        return f"Hardly worth operating: {spread}; so near to it, gains were mostly lost in noise."
    axes = len(structure.singular_values)
    few = f" Few axes to move along (effective rank {structure.effective_rank:.1f} of {axes}): expect less of it to go."
    return (
        f"Worth a comparison: {spread}.{few if structure.effective_rank < FEW_AXES * axes else ''} How much goes, and "
        "whether a class bias does as well, cannot be told beforehand: hessian-surgery compare measures it."
    )
