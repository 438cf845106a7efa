"""The sensitivity matrix S (eq. 4): how each class's accuracy responds to each spike."""

import numpy as np
from torch import Tensor, nn

from hessian_surgery.curvature.lanczos import Spectrum
from hessian_surgery.data.labelled import Data, LabelledSet, as_labelled
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.metrics import class_accuracy
from hessian_surgery.model.classifier import Classifier, as_classifier
from hessian_surgery.model.evaluation import BATCH_SIZE, predict
from hessian_surgery.types import Array, Progress


def sensitivity(
    model: nn.Module | Classifier,
    spectrum: Spectrum,
    data: Data,
    epsilon: float = 0.02,
    *,
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
) -> Array:
    """S (K, C) by central differences, as fractions per unit of amplitude.

    S_ij = (acc_j(θ + ε q_i) − acc_j(θ − ε q_i)) / 2ε, in 2K passes over the data. The weights come
    back bit for bit.

    Args:
        model: at the weights where the spikes were found.
        spectrum: the K spikes.
        data: the calibration set.
        epsilon: ε, the probe's amplitude.
        batch_size: images per forward pass.
        progress: called with (passes done, all passes).
    """
    if epsilon <= 0:
        raise InputError(f"epsilon: got {epsilon}; the probe's amplitude must be positive")
    classifier, labelled = as_classifier(model), as_labelled(data)
    space, rows = spectrum.weights, []

    def probe(direction: Tensor, step: float) -> Array:
        with space.keeping_weights():
            space.perturb(direction, step)
            return accuracies(classifier, labelled, batch_size)

    for i in range(len(spectrum)):
        direction = spectrum.vector(i)
        up, down = probe(direction, epsilon), probe(direction, -epsilon)
        rows.append((up - down) / (2 * epsilon))
        if progress is not None:
            progress(2 * (i + 1), 2 * len(spectrum))
    return np.array(rows).reshape(len(spectrum), len(labelled.classes))


def accuracies(classifier: Classifier, data: LabelledSet, batch_size: int = BATCH_SIZE) -> Array:
    """Accuracy of each class (C,) at the present weights."""
    return class_accuracy(predict(classifier, data, batch_size), data.labels, len(data.classes))
