"""Gradients of soft accuracies: one backward pass over the images of each class or group."""

import math
from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from hessian_surgery.cuda_graphs import batchwise
from hessian_surgery.curvature.batch_operator import zeros
from hessian_surgery.data.batches import Inputs
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.distributed import total
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.accuracies import true_class_probability
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.halving import in_parts
from hessian_surgery.model.parameters import ParameterSpace
from hessian_surgery.ranks import Ranks, present

# Recording a pass saves time from this many batches on.
WORTH_RECORDING = 16

# Inputs, labels (n,) and weights (≥ n,) of a batch's images → gradient (p,) of their weighted sum.
BatchGradient: TypeAlias = Callable[[Inputs, Tensor, Tensor], Tensor]


def batch_gradient(
    classifier: Classifier, space: ParameterSpace, temperature: float, batch_size: int, recorded: bool
) -> BatchGradient:
    """Make the function that differentiates a batch of at most `batch_size` images.

    A batch that does not fit in memory goes through in parts, whose gradients are added. The soft
    accuracy of an image is its `true_class_probability`.

    Args:
        classifier: the model; differentiated in evaluation mode, with the user's kernels.
        space: the weights.
        temperature: temperature of the softmax, in units of logits.
        batch_size: images per forward and backward pass.
        recorded: whether to record it on a GPU, which pays from `WORTH_RECORDING` batches on.
    """

    def plain(inputs: Inputs, labels: Tensor, weights: Tensor) -> Tensor:
        logits = classifier.logits(inputs)
        probability = true_class_probability(logits, labels, temperature)
        if not probability.requires_grad:
            raise InputError("parameters: the logits do not depend on these weights; let others move")
        counted = weights[: len(probability)].to(probability)
        return space.flatten(torch.autograd.grad(counted @ probability, space.parameters, materialize_grads=True))

    whole = batchwise(plain, classifier.module, batch_size, rows=False) if recorded else plain
    return in_parts(whole, lambda parts: torch.stack(parts).sum(dim=0), plain)


def soft_accuracy_gradients(
    classifier: Classifier,
    space: ParameterSpace,
    data: LabelledSet,
    temperature: float,
    batch_size: int,
    squares: Tensor | None = None,
    groups: Sequence[Sequence[int]] | None = None,
    gradient: BatchGradient | None = None,
) -> Generator[tuple[int, Tensor]]:
    """Yield (g, gradient (p,)) for each group of classes with images, of its mean soft accuracy.

    Gradients are not kept: use each before asking for the next. The module stays in evaluation mode
    until the generator ends, so close it (`contextlib.closing`) if you may stop early.

    Args:
        classifier: the model.
        space: the weights.
        data: the images.
        temperature: temperature of the softmax, in units of logits.
        batch_size: images per forward and backward pass; that of `gradient`, if it is given.
        squares: vector (p,) that the square of each batch's mean gradient is added to; ranks that
            share the work add those of their own batches only.
        groups: the classes of each group; by default each class is one.
        gradient: that of `batch_gradient`, if it is there already.
    """
    groups = [[label] for label in range(len(data.classes))] if groups is None else groups
    counts = data.counts
    sizes = torch.tensor([int(counts[list(group)].sum()) for group in groups])
    if gradient is None:
        batch_size = min(batch_size, int(sizes.max()))
        many = int((sizes / batch_size).ceil().sum()) >= WORTH_RECORDING
        gradient = batch_gradient(classifier, space, temperature, batch_size, many)
    turn = present()
    with classifier.evaluating(), space.freezing_others(classifier.module):
        for number, group in enumerate(groups):
            members = torch.isin(data.labels, torch.tensor(list(group))).nonzero().squeeze(1)
            if len(members) > 0:
                weights = _weights(data.labels[members], counts)
                images = data.subset(members)
                now = turn
                turn = turn.turn(math.ceil(len(members) / batch_size))
                # No name for the gradient: it would be held while the next one is made.
                yield number, _mean_gradient(gradient, space, images, weights, batch_size, squares, now)


def _weights(labels: Tensor, counts: Tensor) -> Tensor:
    """What each image (n,) of a group counts, 1 on average: every class counts the same."""
    return len(labels) / (len(labels.unique()) * counts[labels])


@torch.enable_grad()
def _mean_gradient(
    gradient: BatchGradient,
    space: ParameterSpace,
    members: LabelledSet,
    weights: Tensor,
    batch_size: int,
    squares: Tensor | None,
    turn: Ranks,
) -> Tensor:
    """The weighted mean of the images' gradients (p,); ranks take turns at batches."""
    device = space.device
    summed: Tensor | None = None
    parts = weights.split(batch_size)[turn.rank :: turn.size]
    for part, (inputs, labels) in zip(parts, members.batches(batch_size, device, turn), strict=True):
        # A recorded pass fills up a short batch; the filling gets a weight of 0.
        filled = torch.zeros(batch_size, device=device)
        filled[: len(part)] = part.to(device)
        found = gradient(inputs, labels, filled)
        if squares is not None:
            squares.addcmul_(found, found, value=1 / len(labels) ** 2)
        summed = found if summed is None else summed.add_(found)
    return total(zeros(space) if summed is None else summed).div_(len(members))
