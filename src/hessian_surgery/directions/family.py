"""A family of directions in weight space, and what each of them does to every image's logits."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.curvature.basis import Basis, Place, Storage
from hessian_surgery.curvature.memory import free_room
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.directions.logit_changes import logit_difference, logit_tangents, logits_after
from hessian_surgery.evidence.rates import logit_unit
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import BATCH_SIZE
from hessian_surgery.model.parameters import ParameterSpace
from hessian_surgery.types import Array, Progress

# The share of the free memory that directions or logit changes may take before they go elsewhere.
SHARE = 0.4

Vector: TypeAlias = Callable[[int], Tensor]


@dataclass(frozen=True)
class Directions:
    """K directions, each scaled so that a coefficient of 1 moves logits by `logit_unit`, root mean square.

    Attributes:
        name: of the family.
        space: the weights that they are directions of.
        vector: i → unit vector (p,) on the weights' device.
        scales: length (K,) of the step in weight space that a coefficient of 1 means.
        changes: of each image's logits, per unit coefficient (K, N, C), on the weights' device or, where they would
            take too much of its memory, on the host or on disk.
        exact: of how many, the first ones, the changes are linear at any length, as those of biases are.
    """

    name: str
    space: ParameterSpace
    vector: Vector
    scales: Array
    changes: Tensor
    exact: int = 0

    def __len__(self) -> int:
        return len(self.scales)

    def step(self, coefficients: Array) -> Tensor:
        """δθ (p,) = Σ_i c_i s_i v_i."""
        total = torch.zeros(self.space.dimension, dtype=self.space.dtype, device=self.space.device)
        for i, (coefficient, scale) in enumerate(zip(coefficients, self.scales, strict=True)):
            total.add_(self.vector(i), alpha=float(coefficient * scale))
        return total

    def bias_share(self) -> Array:
        """The share (K,) of each direction's logit change that one constant per class explains (R²).

        Constants common to all classes change no answer and are taken out first.
        """
        centred = self.changes - self.changes.mean(dim=2, keepdim=True)
        constant = centred.mean(dim=1, keepdim=True)
        total = centred.square().sum(dim=(1, 2))
        explained = centred.shape[1] * constant.square().sum(dim=(1, 2))
        return (explained / total.clamp(min=1e-30)).double().cpu().numpy()


@dataclass(frozen=True)
class Probe:
    """What directions are tried on.

    Attributes:
        classifier: the model.
        space: the weights that move.
        data: the images.
        logits: theirs (N, C) at the present weights, on the weights' device.
        batch_size: images per forward pass.
        progress: called with (directions done, directions in all).
    """

    classifier: Classifier
    space: ParameterSpace
    data: LabelledSet
    logits: Tensor
    batch_size: int = BATCH_SIZE
    progress: Progress | None = None

    def change(self, step: Tensor) -> Tensor:
        """The change of the logits (N, C) that a step (p,) makes."""
        return logits_after(self.classifier, self.space, step, self.data, self.batch_size) - self.logits


def probe_directions(name: str, probe: Probe, vector: Vector, count: int) -> Directions:
    """The logits' derivatives along each direction.

    On a GPU by forward mode, unless a layer has none: reduced precision would spoil differences there. On a CPU by
    differences, which take one pass where forward mode takes three or more.
    """
    device, unit, shape = probe.space.device, logit_unit(probe.logits), (count, *probe.logits.shape)
    scales, amplitude, forward = np.empty(count), 1e-2, device.type == "cuda"
    changes = room_for(count, math.prod(shape[1:]), torch.float32, device)
    tangent = logit_tangents(probe.classifier, probe.space, probe.data, probe.batch_size)
    for i in range(count):
        direction = vector(i)
        if forward:
            try:
                slope = tangent(direction)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # NotImplementedError is one
                forward = False
        if not forward:
            slope, amplitude = logit_difference(probe.change, direction, amplitude, unit)
        size = float(slope.square().mean().sqrt()) / unit
        scales[i] = 1 / size if size > 0 else 0.0
        changes.append((slope * scales[i]).flatten())
        if probe.progress is not None:
            probe.progress(i + 1, count)
    return Directions(name, probe.space, vector, scales, changes.vectors().view(shape))


def join(families: list[Directions]) -> Directions:
    """Several families as one, in order; its changes are on the host where those of one family are."""
    if len(families) == 1:
        return families[0]
    owners = [(family, i) for family in families for i in range(len(family))]
    device = min((family.changes.device for family in families), key=lambda device: device.type != "cpu")
    changes = torch.cat([family.changes.to(device) for family in families])
    scales = np.concatenate([family.scales for family in families])
    name = "+".join(family.name for family in families)

    def vector(i: int) -> Tensor:
        family, own = owners[i]
        return family.vector(own)

    return Directions(name, families[0].space, vector, scales, changes, families[0].exact)


def room_for(count: int, dimension: int, dtype: torch.dtype, device: torch.device) -> Basis:
    """Room for so many vectors of a length, where there is some."""
    place = _place(count * dimension * dtype.itemsize, device)
    return Basis(dimension, dtype, device, Storage(count, place))


def _place(size: int, device: torch.device) -> Place:
    """Where so many bytes go: the device, the host's memory, or a temporary file."""
    room = free_room(device)
    if size <= SHARE * room.device:
        return "device"
    return "host" if size <= SHARE * room.host else "disk"
