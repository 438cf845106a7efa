"""How logits change along a direction in weight space: by forward mode, or by differences."""

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from hessian_surgery import batches
from hessian_surgery.batches import Inputs
from hessian_surgery.classifier import Classifier
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.evaluation import BATCH_SIZE, compute_logits
from hessian_surgery.parameters import ParameterSpace

# How far a difference moves the logits, root mean square, in units of `objective.logit_unit`: some 3 % from the
# derivative on ResNet-50, and far above float32's rounding.
PROBE = 0.01

Change = Callable[[Tensor], Tensor]


class _Logits(nn.Module):
    """A classifier as a module, so that its weights can be swapped for dual numbers."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.module = classifier.module
        self._classifier = (classifier,)

    def forward(self, inputs: Inputs) -> Tensor:
        return self._classifier[0].logits(inputs)


def logit_tangent(
    classifier: Classifier, space: ParameterSpace, direction: Tensor, data: LabelledSet, batch_size: int = BATCH_SIZE
) -> Tensor:
    """d z / d a of logits z(θ + a · direction) at a = 0, for every image (N, C), on the weights' device.

    One forward-mode pass, at the price of two to three plain ones, whatever the direction's length.

    Raises:
        RuntimeError, NotImplementedError: a layer has no forward mode.
    """
    module, rows = _Logits(classifier), []
    pieces = space.split(direction)
    with classifier.evaluating(), torch.no_grad(), forward_ad.dual_level(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit, inside torch's own forward mode
        weights = {
            f"module.{name}": forward_ad.make_dual(parameter.detach(), piece.contiguous())
            for name, parameter, piece in zip(space.names, space.parameters, pieces, strict=True)
        }
        for inputs, labels in data.batches(batch_size, classifier.device):
            shown = batches.channels_last(inputs)
            logits = torch.func.functional_call(module, weights, (shown,))
            tangent = forward_ad.unpack_dual(logits).tangent
            rows.append(torch.zeros(len(labels), logits.shape[1]) if tangent is None else tangent.float())
    return torch.cat([row.to(space.device) for row in rows])


def logit_difference(change: Change, direction: Tensor, amplitude: float, unit: float) -> tuple[Tensor, float]:
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
) -> Tensor:
    """Logits (N, C) of all images with the weights moved by a step (p,); they come back bit for bit."""
    before = space.snapshot()
    try:
        space.perturb(step)
        return compute_logits(classifier, data, batch_size).to(space.device)
    finally:
        space.restore(before)
