"""Class gradients of the calibration images, crossed: no image sees a direction it helped to make.

A network has fitted its training images, so few of them lie near a boundary between classes; other
images add to what they say. But a direction made from an image's label flatters that image.
So the images are divided into two halves. Each image's logits change along the gradients of the
other half, with the same coefficients for both halves; a step moves along the mean of the two.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.splits import cap_per_class, halves
from hessian_surgery.directions.class_gradients import TRAINING_IMAGES, GradientVectors, gradient_vectors
from hessian_surgery.directions.class_groups import ClassGroups, count_groups
from hessian_surgery.directions.family import Directions, Probe, scaled_changes
from hessian_surgery.types import Array

# Images of a typical class that each half must have; with fewer, its gradients are mostly noise.
ENOUGH = 50


@dataclass(frozen=True)
class _Crossed:
    """The gradients of both halves, as an image of either half sees them.

    Attributes:
        made: the gradients of each half.
        rows: of each half, the positions of the gradients that both have (K,).
    """

    made: tuple[GradientVectors, GradientVectors]
    rows: tuple[list[int], list[int]]

    def vector(self, i: int) -> Tensor:
        """Direction i (p,): the mean of the two halves'."""
        return (self.seen_from(i, 0) + self.seen_from(i, 1)) / 2

    def seen_from(self, i: int, side: int) -> Tensor:
        """Direction i (p,) for the images of a half: the other half's gradient."""
        return self.made[1 - side](self.rows[1 - side][i])

    def combine(self, lengths: Array, side: int | None) -> Tensor:
        """All directions combined (p,), for the images of a half or, with None, for all."""
        if side is None:
            return (self.combine(lengths, 0) + self.combine(lengths, 1)) / 2
        vectors = self.made[1 - side]
        own = np.zeros(len(vectors.rows))
        own[self.rows[1 - side]] = lengths
        return vectors.combine(own)


def calibration_gradients(probe: Probe, seed: int = 0, groups: ClassGroups | None = None) -> Directions | None:
    """Make a direction for each group from the probe's own images; None if there are too few."""
    data = probe.data
    if not enough_images(data.counts):
        return None
    sides = halves(data.labels, seed)
    places = [(sides == side).nonzero().squeeze(1) for side in (0, 1)]
    if probe.moving is not None:
        places = [place[torch.isin(place, probe.moving.cpu())] for place in places]
    names, crossed = _cross(probe, [data.subset(place) for place in places], seed, groups)
    device = probe.space.device

    def slope(i: int) -> Tensor:
        both = torch.empty(probe.logits.shape, device=device)
        for side, place in enumerate(places):
            both[place.to(device)] = probe.slopes(crossed.seen_from(i, side), place).float()
        return both if probe.moving is None else both[probe.moving.to(device)]

    scales, changes = scaled_changes(probe, len(names), slope)
    return Directions(
        name="calibration-gradients",
        labels=tuple(f"gradient of {name}, calibration images" for name in names),
        space=probe.space,
        vector=crossed.vector,
        scales=scales,
        outputs=probe.outputs,
        changes=changes,
        sides=sides,
        seen_from=crossed.seen_from,
        combine=crossed.combine,
        moving=probe.moving,
    )


def _cross(
    probe: Probe, parts: Sequence[LabelledSet], seed: int, groups: ClassGroups | None
) -> tuple[tuple[str, ...], _Crossed]:
    """The gradients of two halves of the images, and the names of the groups that both have."""
    cap = max(1, TRAINING_IMAGES // (2 * len(probe.data.classes)))
    capped = [cap_per_class(part, cap, seed) for part in parts]
    (first, one), (second, other) = (gradient_vectors(probe, part, "calibration_data", groups) for part in capped)
    names = tuple(name for name in first if name in second)
    rows = ([first.index(name) for name in names], [second.index(name) for name in names])
    return names, _Crossed((one, other), rows)


def enough_images(counts: Tensor) -> bool:
    """Whether each half of images, counted by class (C,), has enough of a typical class."""
    return float(counts.double().median()) >= 2 * ENOUGH


def gradient_rows(counts: Tensor, alone: int) -> tuple[int, ...]:
    """Gradients in each family: of training images; of each half of calibration images, if enough.

    Args:
        counts: calibration images of each class (C,).
        alone: classes that share their direction with no other.
    """
    return (count_groups(len(counts), alone),) * (3 if enough_images(counts) else 1)
