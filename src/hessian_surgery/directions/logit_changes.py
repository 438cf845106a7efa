"""How logits change along a direction in weight space: by forward mode, or by differences."""

import math
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from hessian_surgery.data import batches
from hessian_surgery.data.batches import Inputs
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import BATCH_SIZE, batch_logits, compute_logits
from hessian_surgery.model.parameters import ParameterSpace
from hessian_surgery.recording import batchwise

# How far a difference moves the logits, root mean square, in units of `objective.logit_unit`: some 3 % from the
# derivative on ResNet-50, and far above float32's rounding.
PROBE = 0.01
# Images of a batch, at most, where steps are looked at on a GPU: the pass is recorded, so that small batches launch as
# cheaply, and the last one has less to be filled up with.
LOOKED_AT = 256

Along = Callable[[Tensor], Tensor]
Measured = Callable[[Tensor, Tensor | None], Tensor]


class _Logits(nn.Module):
    """A classifier as a module, so that its weights can be swapped for dual numbers."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.module = classifier.module
        self._classifier = (classifier,)

    def forward(self, inputs: Inputs) -> Tensor:
        return self._classifier[0].logits(inputs)


def logit_tangents(
    classifier: Classifier, space: ParameterSpace, data: LabelledSet, batch_size: int = BATCH_SIZE
) -> Along:
    """Direction q (p,) → d z(θ + a q) / d a at a = 0 of every image's logits z (N, C), on the weights' device.

    One forward-mode pass a direction, at the price of two to three plain ones, whatever its length.

    Raises:
        RuntimeError, NotImplementedError: a layer has no forward mode; raised by the function that is returned.
    """
    batch_size = min(batch_size, len(data))
    module, held = _Logits(classifier), torch.empty(space.dimension, dtype=space.dtype, device=space.device)

    def tangent(inputs: Inputs) -> Tensor:
        with forward_ad.dual_level():
            weights = {
                f"module.{name}": forward_ad.make_dual(parameter.detach(), piece.contiguous())
                for name, parameter, piece in zip(space.names, space.parameters, space.split(held), strict=True)
            }
            logits = torch.func.functional_call(module, weights, (batches.channels_last(inputs),))
            slope = forward_ad.unpack_dual(logits).tangent
            return torch.zeros(logits.shape, device=logits.device) if slope is None else slope.float()

    replayed = batchwise(tangent, classifier.module, batch_size)

    def along(direction: Tensor) -> Tensor:
        held.copy_(direction)
        with classifier.evaluating(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit, inside torch's own forward mode
            shown = data.batches(batch_size, classifier.device)
            return torch.cat([replayed(inputs).to(space.device) for inputs, _ in shown])

    return along


def logit_difference(change: Along, direction: Tensor, amplitude: float, unit: float) -> tuple[Tensor, float]:
    """(z(θ + a q) − z(θ)) / a for every image (N, C), with an a that moves logits by about `PROBE`; and that a.

    Args:
        change: step (p,) → change of the logits (N, C), by a forward pass.
        direction: q (p,).
        amplitude: a first guess of a.
        unit: what logits are measured in, `objective.logit_unit`.
    """
    for attempt in range(4):
        moved = change(amplitude * direction)
        size = float(moved.square().mean().sqrt()) / unit
        if not math.isfinite(size):
            amplitude /= 1e3
            continue
        if size == 0 or PROBE / 4 < size < PROBE * 4 or attempt == 3:
            break
        amplitude *= min(max(PROBE / size, 1e-4), 1e4)
    return moved.nan_to_num(0.0, 0.0, 0.0) / amplitude, amplitude


def logits_after(
    classifier: Classifier,
    space: ParameterSpace,
    step: Tensor,
    data: LabelledSet,
    batch_size: int = BATCH_SIZE,
    forward: Callable[[Inputs], Tensor] | None = None,
) -> Tensor:
    """Logits (N, C) of all images with the weights moved by a step (p,); they come back bit for bit.

    `forward` as for `compute_logits`.
    """
    before = space.snapshot()
    try:
        space.perturb(step)
        return compute_logits(classifier, data, batch_size, forward).to(space.device)
    finally:
        space.restore(before)


def measuring(
    classifier: Classifier, space: ParameterSpace, data: LabelledSet, batch_size: int = BATCH_SIZE
) -> Measured:
    """Step (p,), positions (n,) → the logits (n, C) of those images, or of all where positions is None, after the step.

    For many steps: on a GPU the pass is recorded, so that the weights must stay where they are in memory.
    """
    size = min(batch_size, LOOKED_AT, len(data)) if classifier.device.type == "cuda" else batch_size
    forward = batchwise(partial(batch_logits, classifier), classifier.module, size)

    def measured(step: Tensor, positions: Tensor | None) -> Tensor:
        some = data if positions is None else data.subset(positions.cpu())
        return logits_after(classifier, space, step, some, size, forward)

    return measured
