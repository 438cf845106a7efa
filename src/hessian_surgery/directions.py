"""Directions in weight space and what they do to each image's logits: spikes, class-mean gradients, random ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.classifier import Classifier, deterministic_kernels
from hessian_surgery.curvature.basis import length
from hessian_surgery.curvature.krylov import gaussian
from hessian_surgery.curvature.lanczos import Progress, Spectrum
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.splits import cap_per_class
from hessian_surgery.evaluation import BATCH_SIZE, compute_logits
from hessian_surgery.gradients import soft_accuracy_gradients
from hessian_surgery.metrics import Array
from hessian_surgery.objective import TEMPERATURE, logit_unit
from hessian_surgery.parameters import ParameterSpace
from hessian_surgery.seeding import generator

# How far a probe moves the logits, in units of `logit_unit`: far above rounding, and as far as an operation goes.
PROBE = 0.05
# Training images of each class that a class-mean gradient is taken over, at most.
PER_CLASS = 500

Vector: TypeAlias = Callable[[int], Tensor]


@dataclass(frozen=True)
class Directions:
    """K directions, each scaled so that a coefficient of 1 moves logits by `logit_unit`, root mean square.

    Attributes:
        name: of the family.
        space: the weights that they are directions of.
        vector: i → unit vector (p,) on the weights' device.
        scales: length (K,) of the step in weight space that a coefficient of 1 means.
        changes: of each image's logits, per unit coefficient (K, N, C), on the weights' device.
    """

    name: str
    space: ParameterSpace
    vector: Vector
    scales: Array
    changes: Tensor

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


def spike_directions(probe: Probe, spectrum: Spectrum) -> Directions:
    """The spikes of a spectrum."""
    return _probed("spikes", probe, spectrum.vector, len(spectrum))


def class_gradients(probe: Probe, training: LabelledSet, seed: int = 0) -> Directions:
    """For each class, the gradient of its soft accuracy on training images: one backward pass over each class's."""
    temperature, size = TEMPERATURE * logit_unit(probe.logits), max(1, probe.batch_size // 2)
    images = cap_per_class(training, PER_CLASS, seed)
    with deterministic_kernels(exact=True):
        found = soft_accuracy_gradients(probe.classifier, probe.space, images, temperature, size)
        rows = [gradient.div_(norm) for _, gradient in found if (norm := length(gradient)) > 0]
    return _probed("class-gradients", probe, rows.__getitem__, len(rows))


def random_directions(probe: Probe, count: int, seed: int = 0) -> Directions:
    """Gaussian directions, of unit length."""
    drawn = (gaussian(probe.space, generator(seed, "random-direction", i)) for i in range(count))
    rows = [vector / length(vector) for vector in drawn]
    return _probed("random", probe, rows.__getitem__, count)


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


def _probed(name: str, probe: Probe, vector: Vector, count: int) -> Directions:
    """Central differences of logits along each direction, at the amplitude that moves them by about `PROBE`."""
    scales, changes = np.empty(count), torch.empty(count, *probe.logits.shape, device=probe.space.device)
    amplitude, unit = 1e-2, logit_unit(probe.logits)
    for i in range(count):
        direction = vector(i)
        for attempt in range(4):  # the first amplitude is a guess; neighbours are alike
            up = probe.change(amplitude * direction)
            moved = float(up.square().mean().sqrt()) / unit
            if moved == 0 or PROBE / 4 < moved < PROBE * 4 or attempt == 3:
                break
            amplitude *= float(np.clip(PROBE / moved, 1e-4, 1e4))
        slope = (up - probe.change(-amplitude * direction)) / (2 * amplitude)
        size = float(slope.square().mean().sqrt()) / unit
        scales[i] = 1 / size if size > 0 else 0.0
        changes[i] = slope * scales[i]
        if probe.progress is not None:
            probe.progress(i + 1, count)
    return Directions(name, probe.space, vector, scales, changes)
