"""Class gradients: along each of these directions, the soft accuracy of one class rises fastest.

Soft accuracy is the mean softmax probability of the true class. It stands in for accuracy, which
has no useful gradient. Where there are many classes, those that are often confused share a
direction: the gradient of their mean soft accuracy.
"""

import math
from contextlib import closing

import torch
from torch import Tensor

from hessian_surgery.curvature.basis import length
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.splits import cap_per_class
from hessian_surgery.directions.class_groups import ClassGroups, find_groups
from hessian_surgery.directions.family import Directions, Probe, Vector, allocate_rows, probe_directions
from hessian_surgery.directions.soft_accuracy import soft_accuracy_gradients
from hessian_surgery.errors import InputError

# How many training images class gradients are taken over, at most; but one of each class at least.
TRAINING_IMAGES = 5000
# Preconditioned gradients shorter than this are rounding errors.
SHORTEST = 1e-12


def class_gradients(
    probe: Probe, training: LabelledSet, seed: int = 0, groups: ClassGroups | None = None
) -> Directions:
    """Make a direction for each group of classes: the gradient of its accuracy on training images.

    A group gets no direction if it has no training images, or if no weight affects its accuracy.
    """
    names, vector = gradient_vectors(probe, gradient_images(training, seed), "training_data", groups)
    labels = tuple(f"gradient of {name}" for name in names)
    return probe_directions("class-gradients", labels, probe, vector)


def gradient_vectors(
    probe: Probe, images: LabelledSet, argument: str, groups: ClassGroups | None = None
) -> tuple[tuple[str, ...], Vector]:
    """The groups of classes that have a gradient, and its unit vector (p,) for each.

    This takes one backward pass over the images. The gradients are preconditioned as in Adam: each
    weight's entry is divided by the root mean square s of that weight's gradients over small
    batches. The mean of s over all weights is added to the divisor, which avoids division by zero.
    Without preconditioning, a few weights with large gradients would take up the whole step
    (docs/evidence/development.md).

    Args:
        probe: the model, and the logits that set the temperature.
        images: the images whose soft accuracy is differentiated.
        argument: where they come from, for the message of an error.
        groups: which classes share a gradient; by default as `find_groups` says.
    """
    space = probe.space
    groups = groups or find_groups(probe)
    rows = allocate_rows(len(groups), space.dimension, space.dtype, space.device)
    squares = torch.zeros(space.dimension, dtype=space.dtype, device=space.device)
    members = [[label for label in group if label < len(images.classes)] for group in groups.members]
    batch = probe.gradient_batch
    names: list[str] = []
    small_batches = 0
    found = soft_accuracy_gradients(
        probe.classifier, space, images, probe.temperature, batch, squares, members, probe.batch_gradient
    )
    with closing(found):
        for number, gradient in found:
            name = groups.names[number]
            if not torch.isfinite(gradient).all():
                raise InputError(f"{argument}: the gradient of class {name!r} is not finite; check its images")
            rows.append(gradient)
            names.append(name)
            small_batches += math.ceil(int(images.counts[members[number]].sum()) / batch)
            if probe.progress is not None:
                probe.progress(number + 1, len(groups))
    size = (squares / small_batches).sqrt()
    usable, vector = _preconditioned(rows.vectors(), size + size.mean().clamp(min=1e-30), space.device)
    return tuple(names[row] for row in usable), vector


def _preconditioned(kept: Tensor, size: Tensor, device: torch.device) -> tuple[list[int], Vector]:
    """Which gradients (K, p) are usable, and the unit vector of each, divided by `size` (p,)."""

    def part(i: int) -> Tensor:
        return kept[i].to(device) / size

    lengths = [(i, length(part(i))) for i in range(len(kept))]
    usable = [(i, far) for i, far in lengths if math.isfinite(far) and far > SHORTEST]
    if not usable:
        raise InputError("parameters: no class's accuracy responds to these weights; let others move")

    def vector(i: int) -> Tensor:
        row, far = usable[i]
        return part(row) / far

    return [row for row, _ in usable], vector


def gradient_images(training: LabelledSet, seed: int = 0) -> LabelledSet:
    """Draw the training images for class gradients: the same number of each class, or all it has.

    These are `TRAINING_IMAGES` in total, or one of each class if that is more.
    """
    if len(training) == 0:
        raise InputError("training_data: it has no image; class gradients need some, so give training images")
    return cap_per_class(training, max(1, TRAINING_IMAGES // len(training.classes)), seed)
