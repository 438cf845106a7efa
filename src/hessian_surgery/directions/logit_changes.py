"""How logits change along a direction in weight space: by forward mode, or by differences."""

import math
import re
import warnings
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from hessian_surgery.cuda_graphs import batchwise
from hessian_surgery.curvature.memory import input_bytes
from hessian_surgery.data.batches import Inputs
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import BATCH_SIZE, batch_logits, compute_logits, rows_of
from hessian_surgery.model.halving import in_parts
from hessian_surgery.model.parameters import ParameterSpace

# How far a difference moves the logits, root mean square, in units of `logit_unit`. On ResNet-50 it
# is about 3 % away from the derivative, and far above the rounding of float32.
PROBE = 0.01
# The most images in a batch when steps are tried on a GPU. The pass is recorded, so small batches
# cost no more to launch, and less is wasted on filling up the last one.
RECORDED_BATCH = 256
# On a GPU small images go through forward mode in batches of this many bytes: it is 20 % faster.
TANGENT_BYTES = 2**25
# Words in torch's errors that name forward mode; it also stumbles over zero tangents of its own.
FORWARD_MODE = re.compile(r"forward[- ](mode|AD)|\bjvp\b|ZeroTensor", re.IGNORECASE)

# Direction (p,), positions (n,) → derivatives of the logits (n, C) along it; None stands for all.
Tangent: TypeAlias = Callable[[Tensor, Tensor | None], Tensor]
# Step (p,) → change of the logits (N, C).
Change: TypeAlias = Callable[[Tensor], Tensor]
# Step (p,), positions (n,) → logits (n, C) after the step; None stands for all positions.
AfterStep: TypeAlias = Callable[[Tensor, Tensor | None], Tensor]


class _Logits(nn.Module):
    """A classifier as a module, whose weights `functional_call` can replace by dual numbers."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.module = classifier.module
        self._classifier = (classifier,)

    def forward(self, inputs: Inputs) -> Tensor:
        return self._classifier[0].logits(inputs)


def logit_tangents(
    classifier: Classifier, space: ParameterSpace, data: LabelledSet, batch_size: int = BATCH_SIZE
) -> Tangent:
    """Make the function q → d z(θ + a q) / da at a = 0, for the logits z (n, C) of some images.

    It takes one forward-mode pass per direction q (p,), which costs two to three plain passes. Its
    result is on the weights' device. A batch that does not fit in memory goes through in parts. If
    a layer has no forward mode, it raises an error that `lacks_forward_mode` recognizes.
    """
    batch_size = min(batch_size, len(data))
    module = _Logits(classifier)
    held = torch.empty(space.dimension, dtype=space.dtype, device=space.device)

    def tangent(inputs: Inputs) -> Tensor:
        with forward_ad.dual_level():
            weights = {
                f"module.{name}": forward_ad.make_dual(parameter.detach(), piece.contiguous())
                for name, parameter, piece in zip(space.names, space.parameters, space.split(held), strict=True)
            }
            logits = torch.func.functional_call(module, weights, (inputs,))
            slope = forward_ad.unpack_dual(logits).tangent
            return torch.zeros(logits.shape, device=logits.device) if slope is None else slope.float()

    replayed = in_parts(batchwise(tangent, classifier.module, batch_size), torch.cat, tangent)

    def along(direction: Tensor, positions: Tensor | None) -> Tensor:
        held.copy_(direction)
        with classifier.evaluating(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's own forward mode uses torch.jit
            some = data if positions is None else data.subset(positions.cpu())
            return rows_of(lambda inputs: replayed(inputs).to(space.device), some, batch_size, classifier.device)

    return along


def largest_batch(data: LabelledSet, batch_size: int) -> int:
    """The most images in a batch of forward mode, which takes more of them than other passes."""
    return max(batch_size, min(TANGENT_BYTES // input_bytes(data), 8 * batch_size))


def lacks_forward_mode(error: RuntimeError) -> bool:
    """Whether an error of `logit_tangents` means that a layer has no forward mode, and no bug."""
    return isinstance(error, NotImplementedError) or FORWARD_MODE.search(str(error)) is not None


def logit_difference(change: Change, direction: Tensor, amplitude: float, unit: float) -> tuple[Tensor, float]:
    """Compute (z(θ + a q) − z(θ)) / a for all images (N, C), and an a that moves them by `PROBE`.

    Args:
        change: function from a step (p,) to the change of the logits (N, C), by a forward pass.
        direction: q (p,).
        amplitude: first guess of a.
        unit: `logit_unit` of the logits.
    """
    for attempt in range(4):
        used = amplitude
        moved = change(used * direction)
        size = float(moved.square().mean().sqrt()) / unit
        if not math.isfinite(size):
            amplitude /= 1e3
            continue
        if size == 0 or PROBE / 4 < size < PROBE * 4 or attempt == 3:
            break
        amplitude *= min(max(PROBE / size, 1e-4), 1e4)
    return moved.nan_to_num(0.0, 0.0, 0.0) / used, amplitude


def logits_after(
    classifier: Classifier,
    space: ParameterSpace,
    step: Tensor,
    data: LabelledSet,
    batch_size: int = BATCH_SIZE,
    forward: Callable[[Inputs], Tensor] | None = None,
) -> Tensor:
    """Compute the logits (N, C) of all images after a step (p,); the weights come back bit for bit.

    `forward` is that of `compute_logits`.
    """
    with space.keeping_weights():
        space.perturb(step)
        return compute_logits(classifier, data, batch_size, forward).to(space.device)


def logits_after_steps(
    classifier: Classifier, space: ParameterSpace, data: LabelledSet, batch_size: int = BATCH_SIZE, parts: int = 1
) -> AfterStep:
    """Make the function that gives the logits of images after a step; for many steps.

    On a GPU it records the forward pass: the weights must stay where they are in memory.

    Args:
        classifier: the model.
        space: the weights.
        data: the images.
        batch_size: images per forward pass.
        parts: how many parts of about equal size the images are mostly asked for in.
    """
    size = batch_size
    if classifier.device.type == "cuda":
        part = math.ceil(len(data) / parts)
        # Batches of equal size: hardly any is filled up.
        size = math.ceil(part / math.ceil(part / min(batch_size, RECORDED_BATCH)))
    forward = batchwise(partial(batch_logits, classifier), classifier.module, size)

    def after_step(step: Tensor, positions: Tensor | None) -> Tensor:
        some = data if positions is None else data.subset(positions.cpu())
        return logits_after(classifier, space, step, some, size, forward)

    return after_step
