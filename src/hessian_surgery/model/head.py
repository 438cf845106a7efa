"""The head of a classifier: the linear layer whose output is the logits, and the features that it reads."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hessian_surgery.data import batches
from hessian_surgery.data.batches import Inputs
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import BATCH_SIZE


@dataclass(frozen=True)
class Head:
    """The last linear layer: logits = features · weightᵀ + bias.

    Attributes:
        name: as `module.named_modules()` gives it; empty where the model is that layer alone.
        module: the layer itself, not a copy; its weight is (C, d).
    """

    name: str
    module: nn.Linear


def find_head(classifier: Classifier, inputs: Inputs) -> Head | None:
    """The plain linear layer whose output is, untouched, the logits; None where something comes after it.

    Args:
        classifier: it is evaluated in eval mode and left as it was.
        inputs: a batch; two samples are enough.
    """
    outputs: dict[nn.Module, tuple[Tensor, int]] = {}

    def keep(layer: nn.Module, _: object, output: Tensor) -> None:
        outputs[layer] = (output, output._version)

    module = classifier.module
    names = [id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False)]
    # A subclass or a parametrized layer may do more than W x + b, and a tied weight belongs to another layer as well.
    linear = [
        (name, layer)
        for name, layer in module.named_modules()
        if type(layer) is nn.Linear and names.count(id(layer.weight)) == 1
    ]
    hooks = [layer.register_forward_hook(keep) for _, layer in linear]
    try:
        with classifier.evaluating(), torch.no_grad():
            logits = classifier.logits(batches.move(inputs, classifier.device))
    finally:
        for hook in hooks:
            hook.remove()
    for name, layer in linear:
        if layer in outputs and _is_untouched(*outputs[layer], logits):
            return Head(name, layer)
    return None


def _is_untouched(output: Tensor, version: int, logits: Tensor) -> bool:
    # Not by values, which a ReLU leaves alone where they are positive; the version tells of one that works in place.
    same_memory = output.data_ptr() == logits.data_ptr() and output.shape == logits.shape
    return same_memory and output._version == version


def compute_features(
    classifier: Classifier, head: Head, data: LabelledSet, batch_size: int = BATCH_SIZE
) -> tuple[Tensor, Tensor]:
    """What the head reads and what it makes of it: features (N, d) and logits (N, C), in the set's order.

    Both on the CPU in float32, in evaluation mode, without gradients, in one pass over the data.
    """
    features: list[Tensor] = []
    logits: list[Tensor] = []
    latest: list[Tensor] = []

    def keep(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        latest[:] = [arguments[0].float().cpu()]

    hook = head.module.register_forward_pre_hook(keep)
    try:
        with classifier.evaluating(), torch.no_grad():
            for inputs, _ in data.batches(batch_size, classifier.device):
                logits.append(classifier.logits(batches.channels_last(inputs)).float().cpu())
                features += latest
    finally:
        hook.remove()
    return torch.cat(features), torch.cat(logits)
