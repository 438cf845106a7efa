"""Find a classifier's head, the linear layer that gives the logits, and the features it reads."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hessian_surgery.data import batches
from hessian_surgery.data.batches import Inputs
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import BATCH_SIZE, batch_logits, rows_of
from hessian_surgery.model.halving import in_parts


@dataclass(frozen=True)
class Head:
    """The last linear layer: logits = features · weightᵀ + bias.

    Attributes:
        name: name in `module.named_modules()`; empty if the model is just this layer.
        module: the layer itself, not a copy, with a weight of (C, d).
    """

    name: str
    module: nn.Linear

    @property
    def weight_name(self) -> str:
        """The weight's name in `module.named_parameters()`."""
        return f"{self.name}.weight".lstrip(".")

    @property
    def bias_name(self) -> str:
        """The bias's name there, if there is one."""
        return f"{self.name}.bias".lstrip(".")


def find_head(classifier: Classifier, inputs: Inputs) -> Head | None:
    """Find the plain linear layer whose output is the logits; None if anything changes it later.

    Args:
        classifier: the model; it is left as it was.
        inputs: a batch; two samples are enough.
    """
    outputs: dict[nn.Module, tuple[Tensor, int]] = {}

    def keep(layer: nn.Module, _: object, output: Tensor) -> None:
        outputs[layer] = (output, output._version)

    module = classifier.module
    names = [id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False)]
    # A subclass or parametrized layer may do more than W x + b. Another layer uses a tied weight.
    linear = [
        (name, layer)
        for name, layer in module.named_modules()
        if type(layer) is nn.Linear and names.count(id(layer.weight)) == 1
    ]
    hooks = [layer.register_forward_hook(keep) for _, layer in linear]
    try:
        with classifier.evaluating(), torch.no_grad():
            logits = classifier.as_inputs_come().logits(batches.move(inputs, classifier.device))
    finally:
        for hook in hooks:
            hook.remove()
    for name, layer in linear:
        if layer in outputs and _is_untouched(*outputs[layer], logits):
            return Head(name, layer)
    return None


def find_head_on(classifier: Classifier, data: LabelledSet) -> Head | None:
    """`find_head` on the first two samples of a set."""
    inputs, _ = next(data.batches(2, classifier.device))
    return find_head(classifier, inputs)


def _is_untouched(output: Tensor, version: int, logits: Tensor) -> bool:
    # Values do not tell: a ReLU keeps positive ones. The version tells of changes in place.
    same_memory = output.data_ptr() == logits.data_ptr() and output.shape == logits.shape
    return same_memory and output._version == version


def compute_features(
    classifier: Classifier, head: Head, data: LabelledSet, batch_size: int = BATCH_SIZE
) -> tuple[Tensor, Tensor]:
    """Compute the head's features (N, d) and logits (N, C) in one pass, in the set's order.

    In evaluation mode, without gradients; on the CPU, in float32.
    """
    latest: list[Tensor] = []

    def keep(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        latest[:] = [arguments[0].float().cpu()]

    def both(inputs: Inputs) -> Tensor:
        found = batch_logits(classifier, inputs).cpu()
        return torch.cat([latest[0], found], dim=1)

    forward = in_parts(both, torch.cat)
    hook = head.module.register_forward_pre_hook(keep)
    try:
        with classifier.evaluating(), torch.no_grad():
            found = rows_of(forward, data, batch_size, classifier.device, torch.device("cpu"))
    finally:
        hook.remove()
    width = head.module.in_features
    return found[:, :width].contiguous(), found[:, width:].contiguous()
