"""Where a walk goes next: off the spikes, along them, or straight on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from hessian_surgery.curvature.basis import length
from hessian_surgery.curvature.krylov import gaussian
from hessian_surgery.curvature.lanczos import Spectrum
from hessian_surgery.seeding import generator
from hessian_surgery.studies.subspace_angles import spike_rows

Kind: TypeAlias = Literal["bulk", "spike", "random"]


@dataclass(frozen=True)
class WalkDirection:
    """The direction of a walk's next step.

    Attributes:
        direction: a unit vector (p,).
        abandoned: directions (p,) that the walk has given up so far.
        wall: whether it has just given one up.
    """

    direction: Tensor
    abandoned: tuple[Tensor, ...] = ()
    wall: bool = False


def next_direction(
    kind: Kind, previous: WalkDirection | None, spectrum: Spectrum, wall: float, seed: int
) -> WalkDirection:
    """Adapt the previous direction to the present spikes, or draw a new one.

    A new one is drawn at the start, and if little is left of the previous one: a wall.

    Args:
        kind: of the walk.
        previous: direction of the last step; None at the start.
        spectrum: the present spikes.
        wall: τ, the least length that must be left of the previous direction.
        seed: fixes the draws, which are the same for every kind.
    """
    abandoned: tuple[Tensor, ...] = ()
    if previous is not None:
        adapted = adapt(kind, previous.direction, spectrum, previous.abandoned)
        left = length(adapted)
        if left >= wall:
            return WalkDirection(adapted / left, previous.abandoned)
        abandoned = (*previous.abandoned, previous.direction)
    draw = generator(seed, "walk", len(abandoned))
    drawn = adapt(kind, gaussian(spectrum.space, draw), spectrum, abandoned)
    return WalkDirection(drawn / length(drawn), abandoned, wall=previous is not None)


def adapt(kind: Kind, vector: Tensor, spectrum: Spectrum, abandoned: Sequence[Tensor] = ()) -> Tensor:
    """Return the part of a vector (p,) that a kind of walk may follow.

    A bulk walk takes what is orthogonal to the spikes and to abandoned directions (eq. 8). A spike
    walk takes what is in the spikes' span, where a Gaussian vector has Gaussian coefficients. A
    random walk takes all of it.
    """
    if kind == "random":
        return vector
    spikes = spike_rows(spectrum)
    if kind == "spike":
        return spikes.T @ (spikes @ vector)
    # Abandoned directions are not orthogonal to the present spikes: if they were removed one by
    # one, removing the second would bring back some of the first.
    rows = torch.linalg.qr(torch.cat([spikes, torch.stack(tuple(abandoned))]).T).Q.T if abandoned else spikes
    for _ in range(2):  # twice, against rounding
        vector = vector - rows.T @ (rows @ vector)
    return vector


def bulk_alignment(direction: Tensor, spectrum: Spectrum) -> float:
    """‖(I − QQᵀ)d‖ / ‖d‖ of a direction d (p,): 1 in the bulk, 0 in the spikes' span."""
    spikes = spike_rows(spectrum)
    outside = direction - spikes.T @ (spikes @ direction)
    return norm([outside]) / norm([direction])


def norm(tensors: Sequence[Tensor]) -> float:
    """The norm of all tensors as one vector."""
    return math.hypot(*(length(tensor.reshape(-1)) for tensor in tensors))
