"""Class gradients: along each of these directions, the soft accuracy of one class rises fastest.

Soft accuracy is the mean softmax probability of the true class. It stands in for accuracy, which
has no useful gradient. Where there are many classes, those that are often confused share a
direction: the gradient of their mean soft accuracy.
"""

import math
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.curvature.basis import length
from hessian_surgery.curvature.slices import Slices, slices_of, width
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.splits import cap_per_class
from hessian_surgery.directions.class_groups import ClassGroups, find_groups
from hessian_surgery.directions.family import Directions, Probe, probe_directions
from hessian_surgery.directions.rows import allocate_rows
from hessian_surgery.directions.soft_accuracy import soft_accuracy_gradients
from hessian_surgery.distributed import total
from hessian_surgery.errors import InputError
from hessian_surgery.types import Array

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
    names, vectors = gradient_vectors(probe, gradient_images(training, seed), "training_data", groups)
    labels = tuple(f"gradient of {name}" for name in names)
    found = probe_directions("class-gradients", labels, probe, vectors)
    return replace(found, combine=lambda lengths, _: vectors.combine(lengths))


def gradient_vectors(
    probe: Probe, images: LabelledSet, argument: str, groups: ClassGroups | None = None
) -> tuple[tuple[str, ...], "GradientVectors"]:
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
    slices = slices_of(space)
    rows = allocate_rows(len(groups), width(space), space.dtype, space.device)
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
            rows.append(gradient if slices is None else slices.own(gradient))
            names.append(name)
            small_batches += math.ceil(int(images.counts[members[number]].sum()) / batch)
            if probe.progress is not None:
                probe.progress(number + 1, len(groups))
    size = (total(squares) / small_batches).sqrt()
    size = size + size.mean().clamp(min=1e-30)
    found_vectors = _preconditioned(rows.vectors(), size if slices is None else slices.own(size, fill=1.0), slices)
    return tuple(names[row] for row in found_vectors.rows), found_vectors


@dataclass(frozen=True)
class GradientVectors:
    """Preconditioned gradients of unit length, made when they are asked for.

    Attributes:
        kept: the plain gradients (R, p), on the device, on the host or on disk; or this rank's
            slices of them.
        size: what every gradient is divided by (p,), or this rank's slice of it.
        rows: which of the gradients are usable (K,).
        lengths: length of each usable one, divided by `size` (K,).
        slices: how the gradients are spread over ranks; None if they are whole.
    """

    kept: Tensor
    size: Tensor
    rows: tuple[int, ...]
    lengths: tuple[float, ...]
    slices: Slices | None = None

    def __call__(self, i: int) -> Tensor:
        """The unit vector (p,) of gradient i, on the device."""
        return self._whole(self.kept[self.rows[i]].to(self.size.device) / self.size / self.lengths[i])

    def combine(self, lengths: Array) -> Tensor:
        """The sum (p,) of the unit vectors times lengths (K,), in one product."""
        weights = torch.zeros(len(self.kept), dtype=self.kept.dtype)
        weights[list(self.rows)] = torch.from_numpy(lengths / np.array(self.lengths)).to(weights)
        return self._whole((weights.to(self.kept.device) @ self.kept).to(self.size.device) / self.size)

    def _whole(self, part: Tensor) -> Tensor:
        return part if self.slices is None else self.slices.join(part)


def _preconditioned(kept: Tensor, size: Tensor, slices: Slices | None) -> GradientVectors:
    """The usable ones of gradients (R, p), divided by `size` (p,)."""
    lengths = [length(row.to(size.device) / size) for row in kept]
    if slices is not None:
        lengths = total(torch.tensor(lengths, dtype=torch.float64).square()).sqrt().tolist()
    usable = [i for i, far in enumerate(lengths) if math.isfinite(far) and far > SHORTEST]
    if not usable:
        raise InputError("parameters: no class's accuracy responds to these weights; let others move")
    return GradientVectors(kept, size, tuple(usable), tuple(lengths[i] for i in usable), slices)


def gradient_images(training: LabelledSet, seed: int = 0) -> LabelledSet:
    """Draw the training images for class gradients: the same number of each class, or all it has.

    These are `TRAINING_IMAGES` in total, or one of each class if that is more.
    """
    if len(training) == 0:
        raise InputError("training_data: it has no image; class gradients need some, so give training images")
    return cap_per_class(training, max(1, TRAINING_IMAGES // len(training.classes)), seed)
