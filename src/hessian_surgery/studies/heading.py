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
from hessian_surgery.studies.setting import spike_rows

Kind: TypeAlias = Literal["bulk", "spike", "random"]


@dataclass(frozen=True)
class Heading:
    """The present unit direction (p,), the directions given up before it, and whether the last one just was."""

    direction: Tensor
    history: tuple[Tensor, ...] = ()
    wall: bool = False


def turn(kind: Kind, heading: Heading | None, spectrum: Spectrum, wall: float, seed: int) -> Heading:
    """The next step's direction: the former one adapted to the present spikes or, at a wall or at first, a new one.

    Args:
        kind: of the walk.
        heading: the former one; None at first.
        spectrum: the present spikes.
        wall: τ, what the adaptation must leave of the former direction.
        seed: fixes the draws, which are the same for every kind.
    """
    history: tuple[Tensor, ...] = ()
    if heading is not None:
        adapted = adapt(kind, heading.direction, spectrum, heading.history)
        left = length(adapted)
        if left >= wall:
            return Heading(adapted / left, heading.history)
        history = (*heading.history, heading.direction)
    space = spectrum.space
    draw = generator(seed, "walk", len(history))
    drawn = adapt(kind, gaussian(space, draw), spectrum, history)
    return Heading(drawn / length(drawn), history, wall=heading is not None)


def adapt(kind: Kind, vector: Tensor, spectrum: Spectrum, history: Sequence[Tensor] = ()) -> Tensor:
    """What a kind of walk leaves of a vector (p,): for the bulk what is outside spikes and history (eq. 8).

    The spikes' span for a spike walk, where a Gaussian vector leaves Gaussian coefficients; all of it for a random one.
    """
    if kind == "random":
        return vector
    spikes = spike_rows(spectrum)
    if kind == "spike":
        return spikes.T @ (spikes @ vector)
    # Past directions are not orthogonal to the present spikes: removing one would bring back some of the other.
    rows = torch.linalg.qr(torch.cat([spikes, torch.stack(tuple(history))]).T).Q.T if history else spikes
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
