"""The head fitted again to the calibration images, crossed: no image sees a head it helped to fit.

A trained head knows its training images by heart. Fitted again to other images, and taken part of
the way, it gets more images right, which pays for a lower σ. The images are divided into two
halves: each image's logits change by the head that was fitted to the other half, and a step is the
mean of the two.
"""

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from hessian_surgery.data.splits import halves
from hessian_surgery.directions.family import Directions, Probe, scaled_changes
from hessian_surgery.distributed import agreed, together
from hessian_surgery.model.head import Head, compute_features
from hessian_surgery.model.head_fit import fit_head
from hessian_surgery.model.parameters import ParameterSpace
from hessian_surgery.model.temperature import fit_temperature

# Strength of the pull towards the present head; see `fit_head`.
PULL = 0.1
# How many heads are fitted, one to each half.
FITS = 2

# The change of a head's weight (C, d) and bias (C,).
Change: TypeAlias = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Refit:
    """The refitted head as one direction, and all that it changes.

    Attributes:
        directions: the direction.
        length: its coefficient for the whole way to the refitted head.
        changes: change of all logits (N, C) there; also of images that are not moving.
    """

    directions: Directions
    length: float
    changes: Tensor


def refittable(head: Head | None, space: ParameterSpace) -> Head | None:
    """The head, if it can be fitted again: its weight may move. None otherwise."""
    return head if head is not None and head.weight_name in space.names else None


def refit_directions(probe: Probe, head: Head, seed: int = 0) -> Refit:
    """Fit the head, which is `refittable`, again to each half of the images.

    Progress is told of each fit, and of the direction.
    """
    seen, changes, sides = _crossed(probe, head, seed)
    moving = changes if probe.moving is None else changes[probe.moving.to(changes.device)]
    scales, kept = scaled_changes(probe, 1, lambda _: moving)
    # All other entries of the vectors are 0: they are filled in when a vector is asked for.
    held = [tuple(part.to(probe.space.dtype) for part in move) for move in seen]

    def along(side: int | None, length: float = 1.0) -> Tensor:
        mean = [(one + other) / 2 for one, other in zip(*held, strict=True)]
        weight, bias = mean if side is None else held[side]
        return _placed(probe.space, head, length * weight, length * bias)

    directions = Directions(
        name="refit",
        labels=("refitted head",),
        space=probe.space,
        vector=lambda _: along(None),
        scales=scales,
        outputs=probe.outputs,
        changes=kept,
        sides=sides,
        seen_from=lambda _, side: along(side),
        combine=lambda lengths, side: along(side, float(lengths[0])),
        moving=probe.moving,
    )
    return Refit(directions, 1 / float(scales[0]) if scales[0] > 0 else 0.0, changes)


def _crossed(probe: Probe, head: Head, seed: int) -> tuple[list[Change], Tensor, Tensor]:
    """The change of the head that each half sees, of all logits (N, C), and each image's half."""
    data = probe.data
    device = probe.space.device
    # The logits are let go at once: a fit needs the room.
    features = compute_features(probe.classifier, head, data, probe.batch_size)[0].to(device)
    labels = data.labels.to(device)
    # Directions are joined, and share their halves.
    sides = halves(data.labels, seed)
    places = [(sides == side).nonzero().squeeze(1).to(device) for side in (0, 1)]
    shifts = head.bias_name in probe.space.names
    moves = []
    with together():
        for number, own in enumerate(places, start=1):
            moves.append(_refitted(head, features[own], labels[own], len(data.classes), shifts))
            if probe.progress is not None:
                probe.progress(number, FITS)
    moves = agreed(moves)
    seen = [(weight.to(device), bias.to(device)) for weight, bias in reversed(moves)]
    changes = torch.empty(probe.logits.shape, device=device)
    for place, (weight, bias) in zip(places, seen, strict=True):
        changes[place] = features[place] @ weight.T + bias
    return seen, changes, sides


def _refitted(head: Head, features: Tensor, labels: Tensor, classes: int, shifts: bool) -> Change:
    """The change of weight (C, d) and bias (C,) from the present head to one fitted to images.

    Without `shifts` the bias stays as it is, or there is none.

    The present logits are first divided by a temperature that makes them fit the labels. Otherwise
    the fit would mostly shrink the logits of a network that is too sure of itself.
    """
    weight = head.module.weight.detach().to(features)
    bias = features.new_zeros(len(weight)) if head.module.bias is None else head.module.bias.detach().to(features)
    temperature = fit_temperature(features @ weight.T + bias, labels)
    start = (weight / temperature, bias / temperature)
    fitted = fit_head(features, labels, *start, PULL, classes, shifts)
    moved, shifted = (temperature * (new - old) for new, old in zip(fitted, start, strict=True))
    return moved.cpu(), shifted.cpu()


def _placed(space: ParameterSpace, head: Head, weight: Tensor, bias: Tensor) -> Tensor:
    """A change of the head as a vector of all weights that may move (p,)."""
    vector = torch.zeros(space.dimension, dtype=space.dtype, device=space.device)
    first = 0
    for own, parameter in zip(space.names, space.parameters, strict=True):
        if own == head.weight_name:
            vector[first : first + weight.numel()] = weight.flatten()
        elif own == head.bias_name:
            vector[first : first + bias.numel()] = bias
        first += parameter.numel()
    return vector
