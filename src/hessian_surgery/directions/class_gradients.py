"""Class gradients as directions: along each, one class's soft accuracy on training images rises fastest."""

import math
from contextlib import closing

import torch
from torch import Tensor

from hessian_surgery.curvature.basis import length
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.splits import cap_per_class
from hessian_surgery.directions.family import Directions, Probe, probe_directions, room_for
from hessian_surgery.directions.soft_accuracy import soft_accuracy_gradients
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.rates import TEMPERATURE, logit_unit

# Training images that class gradients are taken over, at most, and the fewest of a class.
TRAINING_IMAGES, FEWEST = 5000, 50
# Images of a class whose mean gradient counts once in the preconditioner.
MICRO = 50
# Preconditioned gradients shorter than this are rounding.
SHORTEST = 1e-12


def class_gradients(probe: Probe, training: LabelledSet, seed: int = 0) -> Directions:
    """For each class, the gradient of its soft accuracy on training images: one backward pass over each class's.

    Each weight's part is divided by the root mean square, over small batches, of the gradients there (and its mean over
    all weights, so that nothing is divided by zero), as Adam does: without it a few weights with large gradients take
    all of the step (docs/results/surgery.md).
    """
    space, chosen = probe.space, gradient_images(training, seed)
    rows = room_for(len(chosen.classes), space.dimension, space.dtype, space.device)
    squares = torch.zeros(space.dimension, dtype=space.dtype, device=space.device)
    temperature, batch = TEMPERATURE * logit_unit(probe.logits), min(MICRO, probe.batch_size)
    found = soft_accuracy_gradients(probe.classifier, space, chosen, temperature, batch, squares)
    with closing(found):
        for label, gradient in found:
            if not torch.isfinite(gradient).all():
                name = chosen.classes[label]
                raise InputError(f"training_data: the gradient of class {name!r} is not finite; check its images")
            rows.append(gradient)
            if probe.progress is not None:
                probe.progress(label + 1, len(chosen.classes))
    size = (squares / (chosen.counts / batch).ceil().sum()).sqrt()
    size += size.mean().clamp(min=1e-30)
    kept, device = rows.vectors(), space.device

    def part(i: int) -> Tensor:
        return kept[i].to(device) / size

    # A class whose accuracy no weight moves, or hardly, has no direction.
    lengths = [(i, length(part(i))) for i in range(len(kept))]
    usable = [(i, far) for i, far in lengths if math.isfinite(far) and far > SHORTEST]
    if not usable:
        raise InputError("parameters: no class's accuracy answers to these weights; let others move")

    def vector(i: int) -> Tensor:
        row, far = usable[i]
        return part(row) / far

    return probe_directions("class-gradients", probe, vector, len(usable))


def gradient_images(training: LabelledSet, seed: int = 0) -> LabelledSet:
    """The training images that class gradients are taken over: as many of each class, `TRAINING_IMAGES` in all."""
    if len(training) == 0:
        raise InputError("training_data: no image of any class, so that there is no gradient to move along")
    return cap_per_class(training, max(FEWEST, TRAINING_IMAGES // len(training.classes)), seed)
