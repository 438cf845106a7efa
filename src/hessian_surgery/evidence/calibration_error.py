"""The calibration error of answers, and its change with an interval."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hessian_surgery.evidence.difference import Difference, by_standard_error
from hessian_surgery.model.evaluation import Answers
from hessian_surgery.types import Array

# Bins of confidence.
BINS = 15
# Bootstrap resamples of its change, and how many are drawn at a time.
RESAMPLES = 200
ROWS = 50


def calibration_error(answers: Answers, labels: Tensor) -> float:
    """Expected calibration error: mean |accuracy − confidence| over 15 bins, weighted by images."""
    bins, gaps = _gaps(answers, labels)
    return float(np.abs(np.bincount(bins, weights=gaps, minlength=BINS)).sum() / len(labels))


def calibration_change(before: Answers, after: Answers, labels: Tensor, draw: np.random.Generator) -> Difference:
    """The change of the calibration error, ± 1.96 standard errors from paired resamples.

    Few images make a small error look larger than it is, and a large one hardly: a rise is rather
    understated.
    """
    parts = [_gaps(answers, labels) for answers in (before, after)]
    images = len(labels)
    errors = np.empty((2, RESAMPLES))
    for start in range(0, RESAMPLES, ROWS):
        chosen = draw.integers(0, images, (ROWS, images))
        for i, (bins, gaps) in enumerate(parts):
            cells = (bins[chosen] + BINS * np.arange(ROWS)[:, None]).ravel()
            sums = np.bincount(cells, weights=gaps[chosen].ravel(), minlength=BINS * ROWS).reshape(ROWS, BINS)
            errors[i, start : start + ROWS] = np.abs(sums).sum(axis=1) / images
    change = calibration_error(after, labels) - calibration_error(before, labels)
    return by_standard_error(change, errors[1] - errors[0])


def _gaps(answers: Answers, labels: Tensor) -> tuple[NDArray[np.int64], Array]:
    """For each image (N,): its bin, and 1 or 0 for right or wrong less its confidence."""
    confidence = answers.confidence.double().numpy()
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    return bins, (answers.predicted == labels).double().numpy() - confidence
