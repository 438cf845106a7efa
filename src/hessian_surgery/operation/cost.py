"""What an operation would cost, before it starts: products, passes and memory."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from hessian_surgery.curvature.basis import Storage
from hessian_surgery.curvature.memory import GRAPH_FACTOR, input_bytes, saved_bytes
from hessian_surgery.curvature.memory_plan import basis_bytes, describe_storage
from hessian_surgery.curvature.search import plan_basis
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.directions.calibration_gradients import enough_images
from hessian_surgery.directions.class_gradients import gradient_images
from hessian_surgery.directions.class_groups import count_groups
from hessian_surgery.directions.family import MICRO
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import check_classifier
from hessian_surgery.model.parameters import parameter_space
from hessian_surgery.operation.algorithms import algorithm_of
from hessian_surgery.operation.config import OperationConfig

# Lanczos steps per spike until convergence: 2 to 3 on ResNet-50 and the digits net.
STEPS_PER_SPIKE = 3


@dataclass(frozen=True)
class Cost:
    """An estimate. Bytes are on the model's device.

    Attributes:
        operations: how many; with folds one for each, and the delivered one.
        weights: p, the weights that may move.
        directions: what weights move along in an iteration: K spikes, class gradients.
        gradients: training images whose gradient is taken, in all.
        products: Hessian products in all; an estimate where Lanczos runs to convergence.
        passes: forward passes over the calibration images in all.
        backward: how many of them go back as well, which costs about twice as much again.
        images: images that go forward in all.
        basis: where and how the Lanczos basis, or the gradients, would be kept.
        basis_bytes: what they take there, together with the spikes of all phases.
        snapshot_bytes: copies of the weights.
        graph_bytes: activations and graph of the Hessian batch, or of a batch of training images.
        data_bytes: the calibration images.
    """

    operations: int
    weights: int
    directions: int
    gradients: int
    products: int
    passes: int
    backward: int
    images: int
    basis: str
    basis_bytes: int
    snapshot_bytes: int
    graph_bytes: int
    data_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it at once: about the peak, apart from the model and the held-out images."""
        return self.basis_bytes + self.snapshot_bytes + self.graph_bytes + self.data_bytes

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"total_bytes": self.total_bytes}


def estimate_cost(
    classifier: Classifier,
    training_data: LabelledSet,
    calibration_data: LabelledSet,
    config: OperationConfig,
    folds: int | None = None,
) -> Cost:
    """The cost of `operate`, from one image's forward pass and arithmetic."""
    check_classifier(classifier, calibration_data)
    space = parameter_space(classifier.module, config.parameters)
    classes = len(calibration_data.classes)
    search = config.search
    iterations = config.total_iterations
    spikes = search.count(classes) if config.uses_spikes else 0
    counts = calibration_data.counts
    if config.calibration_cap is not None:
        counts = counts.clamp(max=config.calibration_cap)
    crossed = config.uses_gradients and enough_images(counts)
    groups = count_groups(classes, len(config.alone))
    gradients = (1 + crossed) * groups if config.uses_gradients else 0
    steps = min(search.lanczos_steps or STEPS_PER_SPIKE * spikes, space.dimension)
    images = int(counts.sum())
    work = algorithm_of(config).work(config, counts, classifier.device)
    storage = Storage(0)
    graph_images = MICRO
    if spikes:
        beside = config.vectors_beside * spikes
        storage = plan_basis(classifier, space, training_data, search, spikes, beside=beside, example=calibration_data)
        graph_images = min(search.micro_batch or search.hessian_samples, len(training_data))
    # Each half of the calibration images has gradients of its own.
    rows = storage.rows + (config.vectors_beside + 1) * spikes + gradients + crossed * groups
    saved = saved_bytes(classifier, training_data, space)
    operations = 1 + (folds or 0)
    return Cost(
        operations=operations,
        weights=space.dimension,
        directions=spikes + gradients,
        gradients=operations * iterations * len(gradient_images(training_data)) if gradients else 0,
        products=operations * iterations * steps,
        passes=operations * work.passes,
        backward=operations * work.backward,
        # The delivered operation passes over N images, those of the folds over (F − 1) N together.
        images=max(1, folds or 0) * work.passes * images + operations * work.extra_images,
        basis=describe_storage(storage, space) if spikes else "directions: on the model's device, if they fit",
        basis_bytes=basis_bytes(replace(storage, rows=rows), space),
        snapshot_bytes=3 * space.dimension * space.dtype.itemsize,
        graph_bytes=(GRAPH_FACTOR if spikes else 1) * graph_images * saved,
        data_bytes=images * input_bytes(calibration_data),
    )
