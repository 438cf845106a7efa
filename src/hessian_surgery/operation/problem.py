"""Problem: a checked and measured model, the images it is operated with, and the choices."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from hessian_surgery.curvature.search import SpikeFinder, make_finder
from hessian_surgery.data.checks import require_images
from hessian_surgery.data.class_names import require_same_names
from hessian_surgery.data.labelled import Data, LabelledSet, as_part
from hessian_surgery.data.splits import cap_per_class
from hessian_surgery.directions.class_gradients import gradient_images
from hessian_surgery.directions.refit import refittable
from hessian_surgery.evidence.metrics import class_accuracy
from hessian_surgery.model.classifier import Classifier, as_classifier
from hessian_surgery.model.evaluation import BATCH_SIZE, Answers, answers_of, check_classifier, finite_logits
from hessian_surgery.model.head import Head, find_head_on
from hessian_surgery.model.parameters import ParameterSpace, parameter_space, refuse_half_precision
from hessian_surgery.model.passes import Passes, choose_passes
from hessian_surgery.operation.acceptance_criteria import Criteria
from hessian_surgery.operation.config import OperationConfig, SurgeryConfig
from hessian_surgery.types import Array, Progress

Config = TypeVar("Config", bound=OperationConfig)


@dataclass(frozen=True, kw_only=True)
class Inputs(Generic[Config]):
    """What has been checked, before anything is measured.

    Attributes:
        classifier: the model, at its present weights.
        space: the weights that may move.
        calibration_data: the images that every decision is made on.
        config: the choices, without what the model does not allow.
        training_counts: images of each class (C,) in the training data.
        finder: finds spikes; None if none are sought.
        gradient_data: the training images of the class gradients; None if there are none.
        notes: what should be said about model and data.
    """

    classifier: Classifier
    space: ParameterSpace
    calibration_data: LabelledSet
    config: Config
    training_counts: Tensor
    finder: SpikeFinder | None = None
    gradient_data: LabelledSet | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Problem(Inputs[Config]):
    """What is operated on, fixed for the whole run; `Inputs` describes the other attributes.

    Attributes:
        base: class accuracies (C,) of the starting model on the calibration data.
        logits: the starting model's logits of the calibration images (N, C), on the host.
        batch_size: images per forward pass.
        criteria: acceptance criteria for the held-out images; None if there are none.
        with_front: whether other objectives and budgets are predicted too, for a report.
    """

    base: Array
    logits: Tensor
    batch_size: int = BATCH_SIZE
    criteria: Criteria | None = None
    with_front: bool = False

    @property
    def passes(self) -> Passes:
        """How forward passes are made."""
        return Passes(self.batch_size, self.classifier.channels_last)

    @property
    def started(self) -> Tensor:
        """The class that the starting model predicts for each calibration image (N,)."""
        return self.logits.argmax(dim=1)

    def overall(self, per_class: Array) -> float:
        """Accuracy over all calibration images, from class accuracies (C,)."""
        count = self.calibration_data.counts.numpy()
        return float(per_class @ count / count.sum())


def prepare(
    model: nn.Module | Classifier,
    training_data: Data,
    calibration_data: Data,
    config: Config,
    passes: Passes | None = None,
    logits: Tensor | None = None,
) -> tuple[Problem[Config], Answers]:
    """Check model and data, and measure the starting model.

    Args:
        model: the trained classifier.
        training_data: images that it was trained on.
        calibration_data: images that every decision is made on.
        config: the choices.
        passes: how forward passes are made; None follows the config.
        logits: those of the calibration images (N, C), if they are known.

    Returns:
        The problem, and the starting model's answers to the calibration images.
    """
    return measure_start(check_inputs(model, training_data, calibration_data, config), passes, logits)


def check_inputs(
    model: nn.Module | Classifier,
    training_data: Data,
    calibration_data: Data,
    config: Config,
    directions: bool = True,
    progress: Progress | None = None,
    before_reading: Callable[[], None] | None = None,
) -> Inputs[Config]:
    """Check model and data; see `prepare`. Without `directions` no training image is read.

    `progress` is told of the samples of each part that have been read. `before_reading` is called
    once all is checked, before images are read into memory.
    """
    classifier = as_classifier(model)
    space = parameter_space(classifier.module, config.parameters)
    refuse_half_precision(space)
    calibration = as_part(calibration_data, "calibration_data")
    require_images(calibration.labels, calibration.classes, "calibration_data")
    if config.calibration_cap is not None:
        calibration = cap_per_class(calibration, config.calibration_cap, config.seed)
    training = as_part(training_data, "training_data")
    classes = len(calibration.classes)
    require_same_names(calibration.classes, training.classes, "training_data")
    config.check_classes(calibration.classes)
    note = check_classifier(classifier, calibration)
    if directions:
        config, _ = settle_refit(config, classifier, space, calibration)
    if before_reading is not None:
        before_reading()
    spikes = config.uses_spikes and directions
    finder = _make_finder(classifier, space, training, calibration, config) if spikes else None
    gradients = config.uses_gradients and directions
    return Inputs(
        classifier=classifier,
        space=space,
        calibration_data=calibration.resident(classifier.device, progress),
        config=config,
        training_counts=torch.bincount(training.labels, minlength=classes),
        finder=finder,
        gradient_data=gradient_images(training, config.seed).resident(progress=progress) if gradients else None,
        notes=(note,) if note else (),
    )


def settle_refit(
    config: Config, classifier: Classifier, space: ParameterSpace, data: LabelledSet
) -> tuple[Config, Head | None]:
    """The head that is fitted again, if one is; and the config, without a refit if none can be.

    Args:
        config: the choices.
        classifier: the model.
        space: the weights that may move.
        data: images; the first two tell where the head is.
    """
    if not isinstance(config, SurgeryConfig) or not config.uses_refit:
        return config, None
    head = refittable(find_head_on(classifier, data), space)
    return (config if head else replace(config, directions="class-gradients")), head


def measure_start(
    inputs: Inputs[Config], passes: Passes | None = None, logits: Tensor | None = None
) -> tuple[Problem[Config], Answers]:
    """Choose how passes are made, and measure the starting model; see `prepare`.

    If the logits of the calibration images (N, C) are known, no pass is made.
    """
    data = inputs.calibration_data
    passes = passes or choose_passes(inputs.classifier, data, inputs.config.batch_size)
    classifier = passes.through(inputs.classifier)
    logits = finite_logits(classifier, data, passes.batch_size) if logits is None else logits
    before = answers_of(logits, data.labels)
    base = class_accuracy(before.predicted, data.labels, len(data.classes))
    known = vars(inputs) | {"classifier": classifier}
    return Problem(**known, base=base, logits=logits, batch_size=passes.batch_size), before


def _make_finder(
    classifier: Classifier,
    space: ParameterSpace,
    training: LabelledSet,
    calibration: LabelledSet,
    config: OperationConfig,
) -> SpikeFinder:
    classes = len(calibration.classes)
    return make_finder(
        classifier,
        space,
        training,
        config.search,
        classes=classes,
        seed=config.seed,
        beside=config.vectors_beside * config.search.count(classes),
        example=calibration,
    )
