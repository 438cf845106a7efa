"""Class gradients of the calibration images, crossed: no image sees a direction it helped to make.

A network has fitted its training images, so few of them lie near a boundary between classes; other
images add to what they say. But a direction made from an image's label flatters that image.
So the images are divided into two halves. Each image's logits change along the gradients of the
other half, with the same coefficients for both halves; a step moves along the mean of the two.
"""

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.data.splits import cap_per_class, halves
from hessian_surgery.directions.class_gradients import TRAINING_IMAGES, gradient_vectors
from hessian_surgery.directions.class_groups import ClassGroups, count_groups
from hessian_surgery.directions.family import Directions, Probe, scaled_changes
from hessian_surgery.types import Array

# Images of a typical class that each half must have; with fewer, its gradients are mostly noise.
ENOUGH = 50


def calibration_gradients(probe: Probe, seed: int = 0, groups: ClassGroups | None = None) -> Directions | None:
    """Make a direction for each group from the probe's own images; None if there are too few."""
    data = probe.data
    if not enough_images(data.counts):
        return None
    sides = halves(data.labels, seed)
    places = [(sides == side).nonzero().squeeze(1) for side in (0, 1)]
    cap = max(1, TRAINING_IMAGES // (2 * len(data.classes)))
    if probe.moving is not None:
        places = [place[torch.isin(place, probe.moving.cpu())] for place in places]
    capped = [cap_per_class(data.subset(place), cap, seed) for place in places]
    made = [gradient_vectors(probe, half, "calibration_data", groups) for half in capped]
    names = tuple(name for name in made[0][0] if name in made[1][0])
    rows = [[found.index(name) for name in names] for found, _ in made]

    def seen_from(i: int, side: int) -> Tensor:
        other = 1 - side
        return made[other][1](rows[other][i])

    def combined(lengths: Array, side: int) -> Tensor:
        vectors = made[1 - side][1]
        own = np.zeros(len(vectors.rows))
        own[rows[1 - side]] = lengths
        return vectors.combine(own)

    # Not one function that calls itself: that would hold the vectors until garbage is collected.
    def combine(lengths: Array, side: int | None) -> Tensor:
        if side is None:
            return (combined(lengths, 0) + combined(lengths, 1)) / 2
        return combined(lengths, side)

    device = probe.space.device

    def slope(i: int) -> Tensor:
        both = torch.empty(probe.logits.shape, device=device)
        for side, place in enumerate(places):
            both[place.to(device)] = probe.slopes(seen_from(i, side), place).float()
        return both if probe.moving is None else both[probe.moving.to(device)]

    scales, changes = scaled_changes(probe, len(names), slope)
    return Directions(
        name="calibration-gradients",
        labels=tuple(f"gradient of {name}, calibration images" for name in names),
        space=probe.space,
        vector=lambda i: (seen_from(i, 0) + seen_from(i, 1)) / 2,
        scales=scales,
        outputs=probe.outputs,
        changes=changes,
        sides=sides,
        seen_from=seen_from,
        combine=combine,
        moving=probe.moving,
    )


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
