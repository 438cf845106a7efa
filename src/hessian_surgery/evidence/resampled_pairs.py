"""Resamples of images: how often each is drawn, and class accuracies before and after."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.types import Array

# Bootstrap resamples.
RESAMPLES = 4000
# Resamples that are drawn at a time.
ROWS = 250


@dataclass(frozen=True)
class ResampledPairs:
    """Class accuracies before and after, as measured (C,) and in each resample (R, C).

    Attributes:
        count: images of each class (C,).
        before: measured before.
        after: measured after.
        drawn_before: before, in each resample.
        drawn_after: after, in the same resamples.
    """

    count: Array
    before: Array
    after: Array
    drawn_before: Array
    drawn_after: Array


def resample_images(labels: NDArray[Any], draw: np.random.Generator, resamples: int) -> NDArray[np.int64]:
    """Draw how often each image occurs (R, N), within each class, for labels (N,)."""
    often = np.empty((resamples, len(labels)), dtype=np.int64)
    for members in places_by_class(labels):
        if len(members) > 0:
            often[:, members] = draw.multinomial(len(members), np.full(len(members), 1 / len(members)), resamples)
    return often


def places_by_class(labels: NDArray[Any], classes: int = 0) -> list[NDArray[np.int64]]:
    """The positions of each class's images, in order, for labels (N,) of at least `classes`."""
    ends = np.cumsum(np.bincount(labels, minlength=classes))[:-1]
    return np.split(np.argsort(labels, kind="stable"), ends)


def count_by_class(chosen: NDArray[Any], labels: NDArray[Any], weights: NDArray[Any], classes: int) -> NDArray[Any]:
    """Count the chosen images (S, N) of each class in each resample (R, S, C), in `weights`' dtype.

    Args:
        chosen: which images count, as booleans.
        labels: their classes (N,).
        weights: how often each image occurs in each resample (R, N).
        classes: C.
    """
    found = np.empty((len(weights), len(chosen), classes), dtype=weights.dtype)
    for label, members in enumerate(places_by_class(labels, classes)):
        found[:, :, label] = weights[:, members] @ chosen[:, members].T.astype(weights.dtype)
    return found


def count_pairs(before: Tensor, after: Tensor, labels: Tensor, classes: int) -> NDArray[np.int64]:
    """Count images per class (C, 4): right both times, only before, only after, never."""
    right_before, right_after = ((predicted == labels).long() for predicted in (before, after))
    joint = (labels * 4 + 3 - 2 * right_before - right_after).numpy()
    return np.bincount(joint, minlength=4 * classes).reshape(classes, 4)


def pair_counts(images: BeforeAfter) -> Array:
    """Count the images of each class as `count_pairs` does (C, 4)."""
    found = count_pairs(images.before.predicted, images.after.predicted, images.labels, len(images.classes))
    return found.astype(np.float64)


def resample_pairs(kinds: Array, draw: np.random.Generator, resamples: int = RESAMPLES) -> ResampledPairs:
    """Resample images within each class, from their `pair_counts` (C, 4).

    The images of a class fall into four kinds: one multinomial draw resamples them all.
    """
    count = kinds.sum(axis=1)
    share = kinds / count[:, None]
    before, after = (kinds[:, 0] + kinds[:, kind] for kind in (1, 2))
    drawn_before, drawn_after = np.empty((2, resamples, len(kinds)))
    # Some rows at a time: all four kinds of all resamples take more memory than what is kept.
    for start in range(0, resamples, ROWS):
        rows = slice(start, min(start + ROWS, resamples))
        drawn = draw.multinomial(count.astype(int), share, size=(rows.stop - start, len(kinds)))
        drawn_before[rows], drawn_after[rows] = ((drawn[..., 0] + drawn[..., kind]) / count for kind in (1, 2))
    return ResampledPairs(count, before / count, after / count, drawn_before, drawn_after)
