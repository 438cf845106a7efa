"""The sensitivity matrix S (eq. 4): how each class's accuracy responds to each spike."""

from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import nn

from hessian_surgery.cuda_graphs import batchwise
from hessian_surgery.curvature.lanczos import Spectrum
from hessian_surgery.data.labelled import Data, LabelledSet, as_labelled
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.metrics import class_accuracy
from hessian_surgery.model.classifier import Classifier, as_classifier
from hessian_surgery.model.evaluation import BATCH_SIZE, batch_logits, compute_logits, predict
from hessian_surgery.plain_modes import in_plain_modes
from hessian_surgery.types import Array, Progress

Correct: TypeAlias = NDArray[np.bool_]
Labels: TypeAlias = NDArray[np.int64]


@in_plain_modes
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

    S_ij = (acc_j(θ + ε q_i) − acc_j(θ − ε q_i)) / 2ε, in 2K passes over the data; NaN for a class
    without images. The weights come back bit for bit.

    Args:
        model: at the weights where the spikes were found.
        spectrum: the K spikes.
        data: the calibration set.
        epsilon: ε, the probe's amplitude.
        batch_size: images per forward pass.
        progress: called with (passes done, all passes).

    Example:
        >>> spectrum = hs.lanczos(hs.Hessian(model, hs.hessian_batch(train, 64)), k=2)
        >>> hs.sensitivity(model, spectrum, calibration).shape
        (2, 3)
    """
    labelled = as_labelled(data)
    correct = probe_answers(as_classifier(model), spectrum, labelled, epsilon, batch_size, progress)
    return sensitivity_from_answers(correct, labelled.labels.numpy(), len(labelled.classes), epsilon)


def probe_answers(
    classifier: Classifier,
    spectrum: Spectrum,
    data: LabelledSet,
    epsilon: float,
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
) -> Correct:
    """Whether each image is classified correctly (2K, N) at θ + ε q₁, θ − ε q₁, θ + ε q₂, ….

    The weights come back bit for bit. Arguments are those of `sensitivity`.
    """
    if epsilon <= 0:
        raise InputError(f"epsilon: got {epsilon}; the probe's amplitude must be positive")
    passes = 2 * len(spectrum)
    correct = np.empty((passes, len(data)), dtype=np.bool_)
    forward = batchwise(partial(batch_logits, classifier), classifier.module, min(batch_size, len(data)))
    for i in range(len(spectrum)):
        direction = spectrum.vector(i)
        for row, step in ((2 * i, epsilon), (2 * i + 1, -epsilon)):
            with spectrum.weights.keeping_weights():
                spectrum.weights.perturb(direction, step)
                logits = compute_logits(classifier, data, batch_size, forward)
                correct[row] = (logits.argmax(dim=1) == data.labels).numpy()
        if progress is not None:
            progress(2 * (i + 1), passes)
    return correct


def sensitivity_from_answers(correct: Correct, labels: Labels, classes: int, epsilon: float) -> Array:
    """S (K, C) from a probe's answers (2K, N) and labels (N,); NaN for a class without images."""
    count = np.bincount(labels, minlength=classes)
    accuracy = np.full((len(correct), classes), np.nan)
    for row, answers in zip(accuracy, correct, strict=True):
        np.divide(np.bincount(labels, weights=answers, minlength=classes), count, out=row, where=count > 0)
    return (accuracy[0::2] - accuracy[1::2]) / (2 * epsilon)


def accuracies(classifier: Classifier, data: LabelledSet, batch_size: int = BATCH_SIZE) -> Array:
    """Accuracy of each class (C,) at the present weights."""
    return class_accuracy(predict(classifier, data, batch_size), data.labels, len(data.classes))
