"""A family of directions in weight space, with the change of every image's logits along each."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.directions.logit_changes import (
    Tangent,
    lacks_forward_mode,
    largest_batch,
    logit_difference,
    logit_tangents,
    logits_after,
)
from hessian_surgery.directions.rows import allocate_rows
from hessian_surgery.directions.soft_accuracy import BatchGradient, batch_gradient
from hessian_surgery.evidence.accuracies import TEMPERATURE, logit_unit
from hessian_surgery.evidence.group_sums import make_groups
from hessian_surgery.evidence.leading_outputs import leading_outputs
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import BATCH_SIZE
from hessian_surgery.model.parameters import ParameterSpace
from hessian_surgery.types import Array, Progress

# How often constants of outputs and of images are found in turns.
TURNS = 20
# Images in a batch that is differentiated. The mean gradient of each batch counts once in the
# preconditioner of class gradients.
MICRO = 50

# Lengths (K',), side → the sum (p,) of the vectors that the images of that side see, or of all.
Combine: TypeAlias = Callable[[Array, int | None], Tensor]
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
        outputs: the outputs of each image that can win (N, L), the true class first.
        changes: change of their logits per unit coefficient (K', N, L), for all directions but
            biases. It is on the weights' device, or on the host or on disk if it takes too much
            memory there.
        bias_unit: what a unit coefficient of a bias adds to its logit; 0 if there are no biases.
            These come first, one for each of C outputs.
        bias_at: where the weights of the biases start among all (p,).
        sides: which half of the images each belongs to (N,), 0 or 1, if some directions were made
            from these images themselves; None if none was. Such a direction is the mean of two,
            one from each half. An image's logit change is that along the one that was made
            without it.
        seen_from: function from i and a side to the vector (p,) along which the logit changes of
            that side's images were taken; None if that is `vector` for all.
        combine: sums all vectors but biases at once; None if they are added one by one.
        moving: positions (m,) of the images that have changes, those of the others are 0; None for
            all.
    """

    name: str
    labels: tuple[str, ...]
    space: ParameterSpace
    vector: Vector
    scales: Array
    outputs: Tensor
    changes: Tensor
    bias_unit: float = 0.0
    bias_at: int = 0
    sides: Tensor | None = None
    seen_from: Callable[[int, int], Tensor] | None = None
    combine: Combine | None = None
    moving: Tensor | None = None

    def __len__(self) -> int:
        return len(self.scales)

    def step(self, coefficients: Array, side: int | None = None) -> Tensor:
        """Compute the step δθ (p,) = Σ_i c_i s_i v_i, with coefficients c and scales s.

        With `side`, v_i are the vectors that the images of that side see.
        """
        total = torch.zeros(self.space.dimension, dtype=self.space.dtype, device=self.space.device)
        lengths = coefficients * self.scales
        biases = len(self) - len(self.changes)
        # Each bias is one weight: a vector (p,) for each would cost C · p.
        total[self.bias_at : self.bias_at + biases] = torch.from_numpy(lengths[:biases]).to(total)
        if lengths[biases:].any():
            total.add_(self._along(lengths[biases:], side))
        return total

    def _along(self, lengths: Array, side: int | None) -> Tensor:
        """The sum (p,) of all vectors but biases, times lengths (K',)."""
        if self.combine is not None:
            return self.combine(lengths, side)
        total = torch.zeros(self.space.dimension, dtype=self.space.dtype, device=self.space.device)
        for i, far in enumerate(lengths, start=len(self) - len(lengths)):
            if far:
                total.add_(self.side_vector(i, side), alpha=float(far))
        return total

    def side_vector(self, i: int, side: int | None) -> Tensor:
        """Direction i (p,) as the images of a side see it; for all images without `side`."""
        return self.vector(i) if side is None or self.seen_from is None else self.seen_from(i, side)

    def bias_share(self) -> Array:
        """Share (K',) of each direction's logit change that one constant per output explains (R²).

        A change that is the same for all outputs of an image changes no answer; it is left out.
        Constants of outputs and of images are found in turns, as each image has outputs of its own.
        Biases are left out.
        """
        changes = self.changes
        groups = make_groups(self.outputs.flatten().to(changes.device), int(self.outputs.max()) + 1)
        often = groups.collect(torch.ones_like(changes[:1].flatten(1))).clamp(min=1)
        total = (changes - changes.mean(dim=2, keepdim=True)).square().sum(dim=(1, 2))
        left = changes
        for _ in range(TURNS):
            left = left - left.mean(dim=2, keepdim=True)
            mean = groups.collect(left.flatten(1)) / often
            left = left - groups.spread(mean).view_as(left)
        return (1 - left.square().sum(dim=(1, 2)) / total.clamp(min=1e-30)).double().cpu().numpy()


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
        moving: positions (m,) of the images whose logits directions change; the others are taken
            to stay as they are. None for all.
    """

    classifier: Classifier
    space: ParameterSpace
    data: LabelledSet
    logits: Tensor
    batch_size: int = BATCH_SIZE
    progress: Progress | None = None
    moving: Tensor | None = None

    @cached_property
    def outputs(self) -> Tensor:
        """The outputs of each image that can win (N, L)."""
        return leading_outputs(self.logits, self.data.labels.to(self.logits.device))

    @cached_property
    def slopes(self) -> Tangent:
        """The function that gives derivatives of the logits; made once, as a GPU records it."""
        # Of a copy: a probe that its own function holds stays until garbage is collected.
        return find_slopes(replace(self))

    @property
    def temperature(self) -> float:
        """Temperature of the softmax in soft accuracies, in units of logits."""
        return TEMPERATURE * logit_unit(self.logits)

    @property
    def gradient_batch(self) -> int:
        """Images in a batch that is differentiated."""
        return min(MICRO, self.batch_size)

    @cached_property
    def batch_gradient(self) -> BatchGradient:
        """The function that differentiates a batch; made once, as a GPU records it."""
        return batch_gradient(self.classifier, self.space, self.temperature, self.gradient_batch, recorded=True)

    def change(self, step: Tensor, positions: Tensor | None = None) -> Tensor:
        """Compute the change of the logits (n, C) of some or all images that a step (p,) makes."""
        some = self.data if positions is None else self.data.subset(positions.cpu())
        before = self.logits if positions is None else self.logits[positions.to(self.logits.device)]
        return logits_after(self.classifier, self.space, step, some, self.batch_size) - before


def numbered(word: str, count: int) -> tuple[str, ...]:
    """The labels "word 1" to "word count"."""
    return tuple(f"{word} {i}" for i in range(1, count + 1))


def probe_directions(name: str, labels: tuple[str, ...], probe: Probe, vector: Vector) -> Directions:
    """Make a family of the directions `vector` (i → unit vector), one for each label."""
    scales, changes = scaled_changes(probe, len(labels), lambda i: probe.slopes(vector(i), probe.moving))
    return Directions(name, labels, probe.space, vector, scales, probe.outputs, changes, moving=probe.moving)


def scaled_changes(probe: Probe, count: int, slope: Callable[[int], Tensor]) -> tuple[Array, Tensor]:
    """The scales (K,) and changes (K, N, L) of `Directions`.

    Args:
        probe: the images; its progress is told of each direction.
        count: K.
        slope: function from i to the derivatives of the logits (m, C) of the moving images along
            direction i.
    """
    unit = logit_unit(probe.logits)
    shape = (count, *probe.outputs.shape)
    moving = slice(None) if probe.moving is None else probe.moving.to(probe.outputs.device)
    outputs = probe.outputs[moving]
    scales = np.empty(count)
    changes = allocate_rows(count, math.prod(shape[1:]), torch.float32, probe.space.device)
    for i in range(count):
        found = slope(i)
        size = float(found.square().mean().sqrt()) / unit
        scales[i] = 1 / size if size > 0 else 0.0
        change = torch.zeros(shape[1:], device=found.device)
        change[moving] = found.gather(1, outputs) * scales[i]
        changes.append(change.flatten())
        if probe.progress is not None:
            probe.progress(i + 1, count)
    return scales, changes.vectors().view(shape)


def find_slopes(probe: Probe) -> Tangent:
    """Make the function from a direction (p,) to the derivatives of images' logits along it.

    On a GPU they come from forward mode, unless a layer has none: reduced precision would spoil
    differences. On a CPU they come from differences, which take one pass; forward mode takes as
    long as three or more.
    """
    unit = logit_unit(probe.logits)
    amplitude = 1e-2
    forward = _prefers_forward_mode(probe.space.device)
    most = largest_batch(probe.data, probe.batch_size)
    # Batches of equal size: the last is not filled up.
    size = math.ceil(len(probe.data) / math.ceil(len(probe.data) / most))
    tangent = logit_tangents(probe.classifier, probe.space, probe.data, size)

    def along(direction: Tensor, positions: Tensor | None) -> Tensor:
        nonlocal forward, amplitude
        if forward:
            try:
                return tangent(direction, positions)
            except RuntimeError as error:
                if not lacks_forward_mode(error):
                    raise
                forward = False
        slope, amplitude = logit_difference(lambda step: probe.change(step, positions), direction, amplitude, unit)
        return slope

    return along


def _prefers_forward_mode(device: torch.device) -> bool:
    return device.type == "cuda"


def join(families: list[Directions]) -> Directions:
    """Join families in order, biases first; if the changes of one are on the host, all are."""
    if len(families) == 1:
        return families[0]
    owners = [(family, i) for family in families for i in range(len(family))]
    places = [family.changes.device for family in families if len(family.changes) > 0]
    device = min(places, key=lambda device: device.type != "cpu", default=families[0].changes.device)
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

    def combine(lengths: Array, side: int | None) -> Tensor:
        ends = np.cumsum([len(family.changes) for family in families])[:-1]
        pairs = zip(families, np.split(lengths, ends), strict=True)
        parts = (family._along(own, side) for family, own in pairs if own.any())
        summed = next(parts)
        for part in parts:
            summed.add_(part)
        return summed

    sides = next((family.sides for family in families if family.sides is not None), None)
    moving = next((family.moving for family in families if family.moving is not None), None)
    joined = replace(families[0], name=name, labels=labels, scales=scales, changes=changes, sides=sides)
    return replace(joined, vector=vector, seen_from=seen_from, combine=combine, moving=moving)
