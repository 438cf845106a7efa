"""Gradients of the classes' soft accuracies: one backward pass over the images of each class."""

from collections.abc import Callable, Generator
from typing import TypeAlias

import torch
from torch import Tensor

from hessian_surgery.cuda_graphs import batchwise
from hessian_surgery.data.batches import Inputs
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.accuracies import true_class_probability
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.parameters import ParameterSpace

# Recording a pass saves time from this many batches on.
WORTH_RECORDING = 16

# Inputs, labels (n,) and weights (≥ n,) of a batch's images → gradient (p,) of their weighted sum.
BatchGradient: TypeAlias = Callable[[Inputs, Tensor, Tensor], Tensor]


def soft_accuracy_gradients(
    classifier: Classifier,
    space: ParameterSpace,
    data: LabelledSet,
    temperature: float,
    batch_size: int,
    squares: Tensor | None = None,
) -> Generator[tuple[int, Tensor]]:
    """Yield (j, g_j) for each class j that has images: the gradient (p,) of its mean soft accuracy.

    The soft accuracy of an image is its `true_class_probability`. Gradients are not kept: use each
    before asking for the next. The module stays in evaluation mode until the generator ends, so
    close it (`contextlib.closing`) if you may stop early.

    Args:
        classifier: the model; differentiated in evaluation mode, with the user's kernels.
        space: the weights.
        data: the images.
        temperature: temperature of the softmax, in units of logits.
        batch_size: images per forward and backward pass.
        squares: vector (p,) that the square of each batch's mean gradient is added to.
    """

    def plain(inputs: Inputs, labels: Tensor, weights: Tensor) -> Tensor:
        logits = classifier.logits(inputs)
        probability = true_class_probability(logits, labels, temperature)
        if not probability.requires_grad:
            raise InputError("parameters: the logits do not depend on these weights; let others move")
        counted = weights[: len(probability)].to(probability)
        return space.flatten(torch.autograd.grad(counted @ probability, space.parameters, materialize_grads=True))

    batch_size = min(batch_size, int(data.counts.max()))
    many = int((data.counts / batch_size).ceil().sum()) >= WORTH_RECORDING
    gradient = batchwise(plain, classifier.module, batch_size, rows=False) if many else plain
    with classifier.evaluating(), space.freezing_others(classifier.module):
        for label in range(len(data.classes)):
            members = (data.labels == label).nonzero().squeeze(1)
            if len(members) > 0:
                yield label, _mean_gradient(gradient, data.subset(members), batch_size, classifier.device, squares)


@torch.enable_grad()
def _mean_gradient(
    gradient: BatchGradient, members: LabelledSet, batch_size: int, device: torch.device, squares: Tensor | None
) -> Tensor:
    """The mean of the images' gradients (p,)."""
    total: Tensor | None = None
    for inputs, labels in members.batches(batch_size, device):
        # A recorded pass fills up a short batch; the filling gets a weight of 0.
        found = gradient(inputs, labels, (torch.arange(batch_size, device=device) < len(labels)).float())
        if squares is not None:
            squares.addcmul_(found, found, value=1 / len(labels) ** 2)
        total = found if total is None else total.add_(found)
    assert total is not None  # a class that is asked for has images
    return total.div_(len(members))
