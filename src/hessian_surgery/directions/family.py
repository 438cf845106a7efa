"""A family of directions in weight space, with the change of every image's logits along each."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.curvature.basis import Basis, Place, Storage
from hessian_surgery.curvature.memory import free_room, input_bytes
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.directions.logit_changes import (
    lacks_forward_mode,
    logit_difference,
    logit_tangents,
    logits_after,
)
from hessian_surgery.evidence.accuracies import logit_unit
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import BATCH_SIZE
from hessian_surgery.model.parameters import ParameterSpace
from hessian_surgery.types import Array, Progress

# The largest share of the free memory of one place that directions or logit changes may take.
SHARE = 0.4
# On a GPU small images go through forward mode in batches of this many bytes: it is 20 % faster.
TANGENT_BYTES = 2**25

# i → unit vector (p,) of direction i, on the weights' device.
Vector: TypeAlias = Callable[[int], Tensor]


@dataclass(frozen=True)
class Directions:
    """K directions; a coefficient of 1 moves logits by `logit_unit`, root mean square.

    Attributes:
        name: name of the family.
        labels: what each direction is (K,), such as "bias of cat" or "spike 1".
        space: the weights.
        vector: function from i to the unit vector (p,) of direction i, on the weights' device.
        scales: length (K,) of the step in weight space that a coefficient of 1 means.
        changes: change of each image's logits per unit coefficient (K, N, C). It is on the weights'
            device, or on the host or on disk if it takes too much memory there.
        exact: number of directions, from the first, whose changes are linear at any length, as
            those of biases are.
        sides: which half of the images each belongs to (N,), 0 or 1, if some directions were made
            from these images themselves; None if none was. Such a direction is the mean of two,
            one from each half. An image's logit change is that along the one that was made
            without it.
        seen_from: function from i and a side to the vector (p,) along which the logit changes of
            that side's images were taken; None if that is `vector` for all.
    """

    name: str
    labels: tuple[str, ...]
    space: ParameterSpace
    vector: Vector
    scales: Array
    changes: Tensor
    exact: int = 0
    sides: Tensor | None = None
    seen_from: Callable[[int, int], Tensor] | None = None

    def __len__(self) -> int:
        return len(self.scales)

    def step(self, coefficients: Array, side: int | None = None) -> Tensor:
        """Compute the step δθ (p,) = Σ_i c_i s_i v_i, with coefficients c and scales s.

        With `side`, v_i are the vectors that the images of that side see.
        """
        total = torch.zeros(self.space.dimension, dtype=self.space.dtype, device=self.space.device)
        for i, (coefficient, scale) in enumerate(zip(coefficients, self.scales, strict=True)):
            if coefficient:
                total.add_(self.side_vector(i, side), alpha=float(coefficient * scale))
        return total

    def side_vector(self, i: int, side: int | None) -> Tensor:
        """Direction i (p,) as the images of a side see it; for all images without `side`."""
        return self.vector(i) if side is None or self.seen_from is None else self.seen_from(i, side)

    def bias_share(self) -> Array:
        """Share (K,) of each direction's logit change that one constant per class explains (R²).

        A change that is the same for all classes changes no answer; it is subtracted first.
        """
        centred = self.changes - self.changes.mean(dim=2, keepdim=True)
        constant = centred.mean(dim=1, keepdim=True)
        total = centred.square().sum(dim=(1, 2))
        explained = centred.shape[1] * constant.square().sum(dim=(1, 2))
        return (explained / total.clamp(min=1e-30)).double().cpu().numpy()


@dataclass(frozen=True)
class Probe:
    """The model and images that directions are tried on.

    Attributes:
        classifier: the model.
        space: the weights that move.
        data: the images.
        logits: logits (N, C) of the images at the present weights, on the weights' device.
        batch_size: images per forward pass.
        progress: called with (directions done, directions in total).
    """

    classifier: Classifier
    space: ParameterSpace
    data: LabelledSet
    logits: Tensor
    batch_size: int = BATCH_SIZE
    progress: Progress | None = None

    def change(self, step: Tensor) -> Tensor:
        """Compute the change of the logits (N, C) that a step (p,) makes."""
        return logits_after(self.classifier, self.space, step, self.data, self.batch_size) - self.logits


def numbered(word: str, count: int) -> tuple[str, ...]:
    """The labels "word 1" to "word count"."""
    return tuple(f"{word} {i}" for i in range(1, count + 1))


def probe_directions(name: str, labels: tuple[str, ...], probe: Probe, vector: Vector) -> Directions:
    """Make a family of the directions `vector` (i → unit vector), one for each label."""
    slope_along = find_slopes(probe)
    scales, changes = scaled_changes(probe, len(labels), lambda i: slope_along(vector(i)))
    return Directions(name, labels, probe.space, vector, scales, changes)


def scaled_changes(probe: Probe, count: int, slope: Callable[[int], Tensor]) -> tuple[Array, Tensor]:
    """The scales (K,) and changes (K, N, C) of `Directions`.

    Args:
        probe: the images; its progress is told of each direction.
        count: K.
        slope: function from i to the derivatives of the logits (N, C) along direction i.
    """
    unit = logit_unit(probe.logits)
    shape = (count, *probe.logits.shape)
    scales = np.empty(count)
    changes = allocate_rows(count, math.prod(shape[1:]), torch.float32, probe.space.device)
    for i in range(count):
        found = slope(i)
        size = float(found.square().mean().sqrt()) / unit
        scales[i] = 1 / size if size > 0 else 0.0
        changes.append((found * scales[i]).flatten())
        if probe.progress is not None:
            probe.progress(i + 1, count)
    return scales, changes.vectors().view(shape)


def find_slopes(probe: Probe) -> Callable[[Tensor], Tensor]:
    """Make the function from a direction (p,) to the derivatives of the logits (N, C) along it.

    On a GPU they come from forward mode, unless a layer has none: reduced precision would spoil
    differences. On a CPU they come from differences, which take one pass; forward mode takes as
    long as three or more.
    """
    unit = logit_unit(probe.logits)
    amplitude = 1e-2
    forward = _prefers_forward_mode(probe.space.device)
    size = max(probe.batch_size, min(TANGENT_BYTES // input_bytes(probe.data), 8 * probe.batch_size))
    tangent = logit_tangents(probe.classifier, probe.space, probe.data, size)

    def along(direction: Tensor) -> Tensor:
        nonlocal forward, amplitude, tangent
        if forward:
            try:
                return tangent(direction)
            except torch.OutOfMemoryError:
                tangent = logit_tangents(probe.classifier, probe.space, probe.data, probe.batch_size)
                return tangent(direction)
            except RuntimeError as error:
                if not lacks_forward_mode(error):
                    raise
                forward = False
        slope, amplitude = logit_difference(probe.change, direction, amplitude, unit)
        return slope

    return along


def _prefers_forward_mode(device: torch.device) -> bool:
    return device.type == "cuda"


def join(families: list[Directions]) -> Directions:
    """Join families in order; if the changes of one are on the host, all are.

    Only the first family's exact directions stay exact: put the biases first.
    """
    if len(families) == 1:
        return families[0]
    owners = [(family, i) for family in families for i in range(len(family))]
    device = min((family.changes.device for family in families), key=lambda device: device.type != "cpu")
    changes = torch.cat([family.changes.to(device) for family in families])
    scales = np.concatenate([family.scales for family in families])
    name = "+".join(family.name for family in families)
    labels = tuple(label for family in families for label in family.labels)

    def vector(i: int) -> Tensor:
        family, own = owners[i]
        return family.vector(own)

    def seen_from(i: int, side: int) -> Tensor:
        family, own = owners[i]
        return family.side_vector(own, side)

    exact = families[0].exact
    sides = next((family.sides for family in families if family.sides is not None), None)
    return Directions(name, labels, families[0].space, vector, scales, changes, exact, sides, seen_from)


def allocate_rows(count: int, dimension: int, dtype: torch.dtype, device: torch.device) -> Basis:
    """Make room for `count` vectors (dimension,), on the device or wherever there is enough."""
    place = _place(count * dimension * dtype.itemsize, device)
    return Basis(dimension, dtype, device, Storage(count, place))


def _place(size: int, device: torch.device) -> Place:
    """Choose where `size` bytes go: the device, the host's memory, or a temporary file."""
    room = free_room(device)
    if size <= SHARE * room.device:
        return "device"
    return "host" if size <= SHARE * room.host else "disk"
