"""S by gradients: about one epoch over the calibration images gives all K × C entries."""

from collections.abc import Iterator
from contextlib import closing
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from hessian_surgery.curvature.lanczos import Spectrum
from hessian_surgery.data.labelled import Data, LabelledSet, as_labelled
from hessian_surgery.directions.logit_changes import logits_after_steps
from hessian_surgery.directions.soft_accuracy import soft_accuracy_gradients
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.accuracies import margins
from hessian_surgery.model.classifier import Classifier, as_classifier
from hessian_surgery.model.evaluation import BATCH_SIZE
from hessian_surgery.plain_modes import in_plain_modes
from hessian_surgery.types import Array, Progress

# Temperature of the soft accuracy, in units of the margins' root mean square change under a probe.
MATCH = 0.8
# That change is measured on this many images and along this many spikes, at most.
MATCHED_ON, MATCHED_ALONG = 64, 4
# Gradients held at once: one for each this many spikes, and at least one. The spikes are read once
# for all of them.
SPIKES_PER_GRADIENT = 6


@in_plain_modes
def gradient_sensitivity(
    model: nn.Module | Classifier,
    spectrum: Spectrum,
    data: Data,
    epsilon: float = 0.02,
    *,
    temperature: float | None = None,
    batch_size: int = BATCH_SIZE // 2,
    progress: Progress | None = None,
) -> Array:
    """S (K, C) = q_i · ∇ acc̃_j, as fractions per unit of amplitude; NaN for a class without images.

    acc̃_j is class j's soft accuracy (`soft_accuracy_gradients`): one backward pass over its images
    serves all spikes. The weights come back bit for bit.

    Args:
        model: at the weights where the spikes were found.
        spectrum: the K spikes.
        data: the calibration set.
        epsilon: ε, amplitude of the probe that the temperature is matched to.
        temperature: of the soft accuracy, in units of logits; by default `matched_temperature`.
        batch_size: images per forward and backward pass.
        progress: called with (classes done, all classes).

    Example:
        >>> spectrum = hs.lanczos(hs.Hessian(model, hs.hessian_batch(train, 64)), k=2)
        >>> hs.gradient_sensitivity(model, spectrum, calibration).shape
        (2, 3)
    """
    if epsilon <= 0:
        raise InputError(f"epsilon: got {epsilon}; the probe's amplitude must be positive")
    classifier = as_classifier(model)
    labelled = as_labelled(data)
    classes = len(labelled.classes)
    if temperature is None:
        temperature = matched_temperature(classifier, spectrum, labelled, epsilon, batch_size)
    if not temperature > 0:
        raise InputError(f"temperature: got {temperature}; it must be positive")
    matrix = np.full((len(spectrum), classes), np.nan)
    gradients = soft_accuracy_gradients(classifier, spectrum.weights, labelled, temperature, batch_size)
    held = max(1, len(spectrum) // SPIKES_PER_GRADIENT)
    with closing(gradients):
        while found := _columns(spectrum, gradients, held):
            for label, column in found.items():
                matrix[:, label] = column
            if progress is not None:
                progress(max(found) + 1, classes)
    return matrix


def matched_temperature(
    classifier: Classifier, spectrum: Spectrum, data: LabelledSet, epsilon: float, batch_size: int = BATCH_SIZE
) -> float:
    """The temperature, in units of logits, that blurs margins as much as a probe of amplitude ε.

    It is `MATCH` times the root mean square of the margins' change under steps of ±ε along the
    spikes; both signs, so that a spike's sign does not matter. Some of the spikes are tried on some
    of the images. The weights come back bit for bit.

    At a much lower temperature few images count. At a much higher one images count that no probe
    would turn (docs/evidence/benchmarks.md).
    """
    tried = np.unique(np.linspace(0, len(spectrum) - 1, MATCHED_ALONG).round().astype(int)).tolist()
    positions = torch.linspace(0, len(data) - 1, min(len(data), MATCHED_ON), dtype=torch.float64).round().long()
    some = data.subset(positions)
    after_step = logits_after_steps(classifier, spectrum.weights, some, batch_size)
    changes = []
    for i in tried:
        step = epsilon * spectrum.vector(i)
        up, down = (after_step(s, None).cpu() for s in (step, -step))
        changes.append((margins(up, some.labels) - margins(down, some.labels)) / 2)
    change = float(torch.cat(changes).square().mean().sqrt())
    if not np.isfinite(change):
        raise InputError(f"epsilon: a probe of amplitude {epsilon:g} makes logits that are not finite; take a smaller")
    return max(MATCH * change, 1e-6)


def _columns(spectrum: Spectrum, gradients: Iterator[tuple[int, Tensor]], held: int) -> dict[int, Array]:
    """Columns (K,) of S for the next `held` classes; empty at the end.

    Their gradients are freed on return.
    """
    some = list(islice(gradients, held))
    if not some:
        return {}
    rows = torch.stack([gradient for _, gradient in some]) if held > 1 else some[0][1][None]
    columns = spectrum.project(rows.T).T.cpu().numpy()
    return {label: column for (label, _), column in zip(some, columns, strict=True)}
