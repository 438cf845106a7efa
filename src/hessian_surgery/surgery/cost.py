"""What an operation would cost, before it starts: products, passes and memory."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from hessian_surgery import batches
from hessian_surgery.classifier import Classifier
from hessian_surgery.curvature.basis import BLOCK_ROWS
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.evaluation import check_classifier
from hessian_surgery.losses import cross_entropy
from hessian_surgery.parameters import parameter_space
from hessian_surgery.surgery.config import SurgeryConfig

# Lanczos to convergence: steps per wanted spike, seen on ResNet-50 and the digits net (2 to 3).
STEPS_PER_SPIKE = 3
# Bytes that a gradient kept with its graph holds, per byte that a forward pass saves for its backward pass.
GRAPH_FACTOR = 3


@dataclass(frozen=True)
class Cost:
    """An estimate. Bytes are on the model's device.

    Attributes:
        weights: p, the weights that may move.
        spikes: K.
        products: Hessian products in all; an estimate where Lanczos runs to convergence.
        passes: forward passes over the sensitivity images in all.
        images: images that go forward in those passes.
        basis_bytes: the Lanczos basis and the spikes.
        snapshot_bytes: copies of the weights.
        graph_bytes: activations and gradient graph of the Hessian batch.
        data_bytes: the sensitivity images.
    """

    weights: int
    spikes: int
    products: int
    passes: int
    images: int
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
    classifier: Classifier, hessian_data: LabelledSet, sensitivity_data: LabelledSet, config: SurgeryConfig
) -> Cost:
    """The cost of `operate`, from one image's forward pass and arithmetic."""
    check_classifier(classifier, sensitivity_data)
    space = parameter_space(classifier.module, config.parameters)
    spikes = config.spike_count(len(sensitivity_data.classes))
    steps = min(config.lanczos_steps or STEPS_PER_SPIKE * spikes, space.dimension)
    passes = config.iterations * (2 * spikes + 1) + 2
    vector = space.dimension * torch.finfo(space.dtype).bits // 8
    block = min(BLOCK_ROWS, steps)
    rows = -(-steps // block) * block + spikes
    graph_images = min(config.micro_batch or config.hessian_samples, len(hessian_data))
    count = len(sensitivity_data)
    if config.sensitivity_cap is not None:
        count = int(sensitivity_data.counts.clamp(max=config.sensitivity_cap).sum())
    return Cost(
        weights=space.dimension,
        spikes=spikes,
        products=config.iterations * steps,
        passes=passes,
        images=passes * count,
        basis_bytes=rows * vector,
        snapshot_bytes=3 * vector,
        graph_bytes=GRAPH_FACTOR * graph_images * _saved_bytes(classifier, hessian_data),
        data_bytes=count * _input_bytes(sensitivity_data),
    )


def _saved_bytes(classifier: Classifier, data: LabelledSet) -> int:
    """Bytes that autograd saves for the backward pass of one image, weights excluded."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in classifier.module.parameters()}
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    inputs, labels = next(data.subset(torch.zeros(1, dtype=torch.int64)).batches(1, classifier.device))
    with (
        classifier.evaluating(),
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
    ):
        cross_entropy(classifier.logits(inputs), labels)
    return sum(saved.values())


def _input_bytes(data: LabelledSet) -> int:
    return sum(tensor.nbytes for tensor in batches.tensors(data.fetch(torch.zeros(1, dtype=torch.int64))))
