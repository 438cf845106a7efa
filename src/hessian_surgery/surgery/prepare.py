"""From what a user hands over to a `Problem`: data checked and placed, the model checked and measured."""

import numpy as np
from torch import Tensor, nn

from hessian_surgery.classifier import Classifier, as_classifier
from hessian_surgery.data.labelled import Data, LabelledSet, as_labelled
from hessian_surgery.data.splits import cap_per_class
from hessian_surgery.errors import InputError
from hessian_surgery.evaluation import check_classifier, predict
from hessian_surgery.evidence import FEW_IMAGES
from hessian_surgery.metrics import Array, class_accuracy
from hessian_surgery.parameters import parameter_space
from hessian_surgery.surgery.config import SurgeryConfig
from hessian_surgery.surgery.loop import Problem


def prepare(
    model: nn.Module | Classifier, hessian_data: Data, sensitivity_data: Data, config: SurgeryConfig
) -> tuple[Problem, Tensor]:
    """The problem, and the starting model's predictions (N,) on the sensitivity data."""
    classifier = as_classifier(model)
    space = parameter_space(classifier.module, config.parameters)
    sensitivity = every_class(as_labelled(sensitivity_data), "sensitivity_data")
    if config.sensitivity_cap is not None:
        sensitivity = cap_per_class(sensitivity, config.sensitivity_cap, config.seed)
    sensitivity = sensitivity.resident(classifier.device)
    check_classifier(classifier, sensitivity)
    before = predict(classifier, sensitivity, config.batch_size)
    base = class_accuracy(before, sensitivity.labels, len(sensitivity.classes))
    pool = as_labelled(hessian_data)
    if len(pool.classes) > len(sensitivity.classes):
        raise InputError(
            f"hessian_data: it has {len(pool.classes)} classes and sensitivity_data has {len(sensitivity.classes)}"
        )
    return Problem(classifier, space, pool, sensitivity, config, base), before


def every_class(data: LabelledSet, argument: str) -> LabelledSet:
    """The data, if each of its classes has an image."""
    empty = [name for name, count in zip(data.classes, data.counts.tolist(), strict=True) if count == 0]
    if empty:
        raise InputError(f"{argument}: no image of class {empty[0]!r}; every class needs some to be measured")
    return data


def convergence_warning(residuals: Array, tolerance: float) -> str | None:
    """Which spikes have not converged, if any."""
    loose = np.flatnonzero(residuals > tolerance)
    if len(loose) == 0:
        return None
    which = ", ".join(str(i + 1) for i in loose)
    return f"spikes {which} have not converged (relative residual up to {residuals.max():.2g}, wanted {tolerance:g})"


def rare_class_warning(data: LabelledSet, part: str) -> str | None:
    """Which classes have too few images for a claim, if any."""
    counts = zip(data.classes, data.counts.tolist(), strict=True)
    rare = [f"{name} ({count})" for name, count in counts if count < FEW_IMAGES]
    if not rare:
        return None
    listed = ", ".join(rare[:5]) + (f" and {len(rare) - 5} more" if len(rare) > 5 else "")
    return f"fewer than {FEW_IMAGES} {part} images of {listed}: no claim can be made about a class so small"
