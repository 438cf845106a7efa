"""From what a user hands over to a `Problem`: data checked and placed, the model checked and measured."""

from torch import nn

from hessian_surgery.curvature.basis import Storage
from hessian_surgery.curvature.memory_plan import plan_room
from hessian_surgery.data.labelled import Data, LabelledSet, as_labelled
from hessian_surgery.data.splits import cap_per_class, hessian_batch
from hessian_surgery.directions.class_gradients import gradient_images
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.metrics import class_accuracy
from hessian_surgery.evidence.paired_tests import FEW_IMAGES
from hessian_surgery.model.classifier import Classifier, as_classifier
from hessian_surgery.model.evaluation import Answers, answer, check_classifier
from hessian_surgery.model.losses import make_loss
from hessian_surgery.model.parameters import ParameterSpace, parameter_space
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.paper.loop import Problem


def prepare(
    model: nn.Module | Classifier,
    training_data: Data,
    calibration_data: Data,
    config: SurgeryConfig,
    spikes: bool = True,
    gradients: bool = False,
) -> tuple[Problem, Answers]:
    """The problem, and the starting model's answers on the calibration data.

    Args:
        model: the trained classifier.
        training_data: training images.
        calibration_data: the images that are decided on.
        config: the choices.
        spikes: draw a Hessian batch, and plan the memory of a Lanczos basis.
        gradients: draw the images that class gradients are taken over.
    """
    classifier = as_classifier(model)
    space = parameter_space(classifier.module, config.parameters)
    refuse_half_precision(space)
    sensitivity = every_class(as_labelled(calibration_data), "calibration_data")
    if config.calibration_cap is not None:
        sensitivity = cap_per_class(sensitivity, config.calibration_cap, config.seed)
    pool = as_labelled(training_data)
    if len(pool.classes) > len(sensitivity.classes):
        raise InputError(
            f"training_data: it has {len(pool.classes)} classes and calibration_data has {len(sensitivity.classes)}"
        )
    note = check_classifier(classifier, sensitivity)
    storage = plan_memory(classifier, space, len(pool), sensitivity, config) if spikes else Storage(rows=0)
    sensitivity = sensitivity.resident(classifier.device)
    before = answer(classifier, sensitivity, config.batch_size)
    base = class_accuracy(before.predicted, sensitivity.labels, len(sensitivity.classes))
    loss = make_loss(config.loss, pool.counts)
    gradient_data = gradient_images(pool, config.seed).resident() if gradients else None
    if spikes and not config.redraw_hessian:
        # Held from here on: a data set that augments its images would give other ones at each product.
        pool = hessian_batch(pool, config.hessian_samples, config.hessian_sampling, config.seed).resident(
            classifier.device
        )
    notes = (note,) if note else ()
    return Problem(classifier, space, pool, sensitivity, config, loss, storage, base, notes, gradient_data), before


def plan_memory(
    classifier: Classifier, space: ParameterSpace, pool: int, sensitivity: LabelledSet, config: SurgeryConfig
) -> Storage:
    """Where the basis goes, once the Hessian batch's graph and the vectors of earlier phases have their room.

    `pool` is how many images there are to draw the Hessian batch from.

    Raises:
        InputError: it does not fit; the message says what would.
    """
    spikes = config.spike_count(len(sensitivity.classes))
    images = min(config.micro_batch or pool, config.hessian_samples, pool)
    return plan_room(
        classifier,
        space,
        sensitivity,
        images,
        spikes,
        config.lanczos_steps,
        config.tolerance,
        config.basis,
        config.precision,
        config.basis_memory,
        beside=(config.phases - 1) * spikes,
    )


def refuse_half_precision(space: ParameterSpace) -> None:
    """Raise an InputError where weights are held in less than float32."""
    half = next((n for n, p in zip(space.names, space.parameters, strict=True) if p.element_size() < 4), None)
    if half is not None:
        raise InputError(
            f"model: {half!r} is held in half precision, where small steps round away; call model.float() first "
            "(stored_as keeps the file's dtype)"
        )


def every_class(data: LabelledSet, argument: str) -> LabelledSet:
    """The data, if each of its classes has an image."""
    empty = [name for name, count in zip(data.classes, data.counts.tolist(), strict=True) if count == 0]
    if empty:
        raise InputError(f"{argument}: no image of class {empty[0]!r}; every class needs some to be measured")
    return data


def convergence_warning(residuals: list[list[float]], tolerance: float) -> str | None:
    """Which spikes had not converged in some iteration, if any."""
    loose = {i + 1 for row in residuals for i, residual in enumerate(row) if residual > tolerance}
    if not loose:
        return None
    which, worst = ", ".join(map(str, sorted(loose))), max(max(row) for row in residuals)
    return f"spikes {which} have not converged (relative residual up to {worst:.2g}, wanted {tolerance:g})"


def rare_class_warning(data: LabelledSet, part: str) -> str | None:
    """Which classes have too few images for a claim, if any."""
    counts = zip(data.classes, data.counts.tolist(), strict=True)
    rare = [f"{name} ({count})" for name, count in counts if count < FEW_IMAGES]
    if not rare:
        return None
    listed = ", ".join(rare[:5]) + (f" and {len(rare) - 5} more" if len(rare) > 5 else "")
    return f"fewer than {FEW_IMAGES} {part} images of {listed}: no claim can be made about a class so small"
