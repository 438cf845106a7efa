"""What an operation would cost, before it starts: products, passes and memory."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from hessian_surgery.curvature.basis import Storage
from hessian_surgery.curvature.memory import GRAPH_FACTOR, input_bytes, saved_bytes
from hessian_surgery.curvature.memory_plan import basis_bytes, describe_storage
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.directions.class_gradients import MICRO, gradient_images
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import check_classifier
from hessian_surgery.model.parameters import parameter_space
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.operation.fit import PRICES
from hessian_surgery.operation.problem import plan_memory
from hessian_surgery.paper.sensitivity_gradients import MATCHED_ALONG, MATCHED_ON

# Lanczos to convergence: steps per wanted spike, seen on ResNet-50 and the digits net (2 to 3).
STEPS_PER_SPIKE = 3
# What the change of logits along a direction costs, in passes: by forward mode, and by a difference.
PASSES_PER_TANGENT, PASSES_PER_DIFFERENCE = 2.9, 1.0


@dataclass(frozen=True)
class Cost:
    """An estimate. Bytes are on the model's device.

    Attributes:
        weights: p, the weights that may move.
        directions: what weights move along in a round: K spikes, class gradients.
        gradients: training images whose gradient is taken, in all.
        products: Hessian products in all; an estimate where Lanczos runs to convergence.
        passes: forward passes over the calibration images in all.
        backward: how many of them go back as well, which costs about twice as much again.
        images: images that go forward in all, those that a temperature is matched on included.
        basis: where the Lanczos basis, or the gradients, would be kept, and how.
        basis_bytes: what they take there, with the spikes and those of earlier phases.
        snapshot_bytes: copies of the weights.
        graph_bytes: activations and gradient graph of the Hessian batch, or of a batch of training images.
        data_bytes: the calibration images.
    """

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
        """All of it at once: about the peak, beside the model and the held-out images."""
        return self.basis_bytes + self.snapshot_bytes + self.graph_bytes + self.data_bytes

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"total_bytes": self.total_bytes}


def estimate_cost(
    classifier: Classifier, training_data: LabelledSet, calibration_data: LabelledSet, config: SurgeryConfig
) -> Cost:
    """The cost of `operate`, from one image's forward pass and arithmetic."""
    check_classifier(classifier, calibration_data)
    space = parameter_space(classifier.module, config.parameters)
    classes, planned = len(calibration_data.classes), config.algorithm == "planned"
    spikes = config.spike_count(classes) if config.uses_spikes else 0
    gradients = classes if planned and config.directions != "spikes" else 0
    steps = min(config.lanczos_steps or STEPS_PER_SPIKE * spikes, space.dimension)
    by_gradients = config.sensitivity == "gradients" and not planned
    if planned:  # along each direction, the logits before and after; fits that are measured, at most, and the front's
        each = PASSES_PER_TANGENT if classifier.device.type == "cuda" else PASSES_PER_DIFFERENCE
        looks = len(PRICES) * (config.rounds + 1)
        passes = config.rounds * math.ceil(each * (spikes + gradients) + 2) + 2 + looks
    else:
        passes = config.rounds * ((1 if by_gradients else 2 * spikes) + 1) + 2
    vector = space.dimension * space.dtype.itemsize
    storage = plan_memory(classifier, space, len(training_data), calibration_data, config) if spikes else Storage(0)
    graph_images = min(config.micro_batch or config.hessian_samples, len(training_data)) if spikes else MICRO
    count = len(calibration_data)
    if config.calibration_cap is not None:
        count = int(calibration_data.counts.clamp(max=config.calibration_cap).sum())
    matching = 2 * min(spikes, MATCHED_ALONG) * min(count, MATCHED_ON)
    rows = storage.rows + config.phases * spikes + gradients
    return Cost(
        weights=space.dimension,
        directions=spikes + gradients,
        gradients=config.rounds * len(gradient_images(training_data)) if gradients else 0,
        products=config.rounds * steps,
        passes=passes,
        backward=config.rounds if by_gradients else 0,
        images=passes * count + (config.rounds * matching if by_gradients else 0),
        basis=describe_storage(storage, space) if spikes else "directions: on the model's device, if they fit",
        basis_bytes=basis_bytes(replace(storage, rows=rows), space),
        snapshot_bytes=3 * vector,
        graph_bytes=(GRAPH_FACTOR if spikes else 1) * graph_images * saved_bytes(classifier, training_data, space),
        data_bytes=count * input_bytes(calibration_data),
    )
