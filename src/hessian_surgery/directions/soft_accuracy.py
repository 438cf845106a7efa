"""Gradients of each class's soft accuracy in weight space: one backward pass over the images of each class."""

from collections.abc import Callable, Generator

import torch
from torch import Tensor

from hessian_surgery.data import batches
from hessian_surgery.data.batches import Inputs
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.errors import InputError
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.parameters import ParameterSpace
from hessian_surgery.recording import batchwise

# From so many batches on, recording a pass takes less time than it saves.
WORTH_RECORDING = 16

Slope = Callable[[Inputs, Tensor, Tensor], Tensor]


def soft_accuracy_gradients(
    classifier: Classifier,
    space: ParameterSpace,
    data: LabelledSet,
    temperature: float,
    batch_size: int,
    squares: Tensor | None = None,
) -> Generator[tuple[int, Tensor]]:
    """(j, g_j) of each class that has images: the gradient (p,) of its mean soft accuracy, per unit of weight.

    Soft accuracy is the softmax probability of the truth at a temperature, which is the sigmoid of margin/temperature
    where the margin counts from the soft maximum of the other logits (`objective.soft_rates`). Nothing of a class is
    held once the next one is asked for. Close it (`contextlib.closing`) where it may not be read to its end: the module
    is in evaluation mode until then.

    Args:
        classifier: differentiated in evaluation mode, with the user's kernels; leaves no trace.
        space: the weights.
        data: the images.
        temperature: in units of logits.
        batch_size: images per forward and backward pass.
        squares: (p,), to which the square of each batch's mean gradient is added.
    """

    def plain(inputs: Inputs, labels: Tensor, weights: Tensor) -> Tensor:
        logits = classifier.logits(batches.channels_last(inputs))
        sure = torch.softmax(logits / temperature, dim=1).gather(1, labels[:, None]).squeeze(1)
        if not sure.requires_grad:
            raise InputError("parameters: the logits do not depend on these weights; let others move")
        counted = weights[: len(sure)].to(sure)
        return space.flatten(torch.autograd.grad(counted @ sure, space.parameters, materialize_grads=True))

    batch_size = min(batch_size, int(data.counts.max()))
    many = int((data.counts / batch_size).ceil().sum()) >= WORTH_RECORDING
    slope = batchwise(plain, classifier.module, batch_size, rows=False) if many else plain
    with classifier.evaluating(), space.freezing_others(classifier.module):
        for label in range(len(data.classes)):
            members = (data.labels == label).nonzero().squeeze(1)
            if len(members) > 0:
                yield label, _gradient(slope, data.subset(members), batch_size, classifier.device, squares)


@torch.enable_grad()
def _gradient(
    slope: Slope, members: LabelledSet, batch_size: int, device: torch.device, squares: Tensor | None
) -> Tensor:
    """The mean of the images' slopes (p,)."""
    total: Tensor | None = None
    for inputs, labels in members.batches(batch_size, device):
        # A batch that is filled up counts what it was filled with at nothing.
        found = slope(inputs, labels, (torch.arange(batch_size, device=device) < len(labels)).float())
        if squares is not None:
            squares.addcmul_(found, found, value=1 / len(labels) ** 2)
        total = found if total is None else total.add_(found)
    assert total is not None  # a class that is asked for has images
    return total.div_(len(members))
