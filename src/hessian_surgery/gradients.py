"""Gradients of each class's soft accuracy in weight space: one backward pass over the images of each class."""

from collections.abc import Iterator

import torch
from torch import Tensor

from hessian_surgery import batches
from hessian_surgery.classifier import Classifier
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.errors import InputError
from hessian_surgery.parameters import ParameterSpace


def soft_accuracy_gradients(
    classifier: Classifier,
    space: ParameterSpace,
    data: LabelledSet,
    temperature: float,
    batch_size: int,
    squares: Tensor | None = None,
) -> Iterator[tuple[int, Tensor]]:
    """(j, g_j) of each class that has images: the gradient (p,) of its mean soft accuracy, per unit of weight.

    Soft accuracy is the softmax probability of the truth at a temperature, which is the sigmoid of margin/temperature
    where the margin counts from the soft maximum of the other logits (`objective.soft_rates`). Nothing of a class is
    held once the next one is asked for.

    Args:
        classifier: differentiated in evaluation mode, with the user's kernels; leaves no trace.
        space: the weights.
        data: the images.
        temperature: in units of logits.
        batch_size: images per forward and backward pass.
        squares: (p,), to which the square of each batch's mean gradient is added.
    """
    for label in range(len(data.classes)):
        members = (data.labels == label).nonzero().squeeze(1)
        if len(members) > 0:
            yield label, _gradient(classifier, space, data.subset(members), temperature, batch_size, squares)


def _gradient(
    classifier: Classifier,
    space: ParameterSpace,
    members: LabelledSet,
    temperature: float,
    batch_size: int,
    squares: Tensor | None,
) -> Tensor:
    total = torch.zeros(space.dimension, dtype=space.dtype, device=space.device)
    with classifier.evaluating(), space.freezing_others(classifier.module), torch.enable_grad():
        for inputs, labels in members.batches(batch_size, classifier.device):
            logits = classifier.logits(batches.channels_last(inputs))
            sure = torch.softmax(logits / temperature, dim=1).gather(1, labels[:, None]).sum()
            if not sure.requires_grad:
                raise InputError("parameters: the logits do not depend on these weights; let others move")
            slope = space.flatten(torch.autograd.grad(sure, space.parameters, materialize_grads=True))
            total += slope
            if squares is not None:
                squares.addcmul_(slope, slope, value=1 / len(labels) ** 2)
    return total.div_(len(members))
