"""The head fitted again to the calibration images, crossed: no image sees a head it helped to fit.

A trained head knows its training images by heart. Fitted again to other images, and taken part of
the way, it gets more images right, which pays for a lower σ. The images are divided into two
halves: each image's logits change by the head that was fitted to the other half, and a step is the
mean of the two.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hessian_surgery.data.splits import stratified_folds
from hessian_surgery.directions.family import Directions, Probe, scaled_changes
from hessian_surgery.distributed import agreed, together
from hessian_surgery.model.head import Head, compute_features
from hessian_surgery.model.head_fit import fit_head
from hessian_surgery.model.temperature import fit_temperature
from hessian_surgery.seeding import generator
from hessian_surgery.types import Array

# Strength of the pull towards the present head; see `fit_head`.
PULL = 0.1


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


def refit_directions(probe: Probe, head: Head | None, seed: int = 0) -> Refit | None:
    """Fit the head again to each half of the images; None without a linear head that may move."""
    if head is None or f"{head.name}.weight".lstrip(".") not in probe.space.names:
        return None
    name = f"{head.name}.weight".lstrip(".")
    data = probe.data
    device = probe.space.device
    features, _ = compute_features(probe.classifier, head, data, probe.batch_size)
    features, labels = features.to(device), data.labels.to(device)
    # The halves of the calibration gradients: directions are joined, and share their sides.
    sides = stratified_folds(data.labels, 2, generator(seed, "sides"))
    places = [(sides == side).nonzero().squeeze(1).to(device) for side in (0, 1)]
    shifts = f"{head.name}.bias".lstrip(".") in probe.space.names
    with together():
        moves = [_refitted(head, features[own], labels[own], len(data.classes), shifts) for own in places]
    moves = agreed(moves)
    seen = [tuple(part.to(device) for part in moves[1 - side]) for side in (0, 1)]
    changes = torch.empty(probe.logits.shape, device=device)
    for place, (weight, bias) in zip(places, seen, strict=True):
        changes[place] = features[place] @ weight.T + bias
    vectors = [_placed(probe, name, *move) for move in seen]
    moving = changes if probe.moving is None else changes[probe.moving.to(device)]
    scales, kept = scaled_changes(probe, 1, lambda _: moving)

    def seen_from(_: int, side: int) -> Tensor:
        return vectors[side]

    def combine(lengths: Array, side: int | None) -> Tensor:
        return float(lengths[0]) * ((vectors[0] + vectors[1]) / 2 if side is None else vectors[side])

    directions = Directions(
        name="refit",
        labels=("refitted head",),
        space=probe.space,
        vector=lambda _: (vectors[0] + vectors[1]) / 2,
        scales=scales,
        outputs=probe.outputs,
        changes=kept,
        sides=sides,
        seen_from=seen_from,
        combine=combine,
        moving=probe.moving,
    )
    return Refit(directions, 1 / float(scales[0]) if scales[0] > 0 else 0.0, changes)


def _refitted(head: Head, features: Tensor, labels: Tensor, classes: int, shifts: bool) -> tuple[Tensor, Tensor]:
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


def _placed(probe: Probe, name: str, weight: Tensor, bias: Tensor) -> Tensor:
    """A change of the head as a vector of all weights that may move (p,)."""
    space = probe.space
    vector = torch.zeros(space.dimension, dtype=space.dtype, device=space.device)
    first = 0
    for own, parameter in zip(space.names, space.parameters, strict=True):
        if own == name:
            vector[first : first + weight.numel()] = weight.flatten().to(vector)
        elif own == f"{name.removesuffix('weight')}bias":
            vector[first : first + bias.numel()] = bias.to(vector)
        first += parameter.numel()
    return vector
