"""Figures of predictions on held-out images, and intervals from a bootstrap over images."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hessian_surgery.baselines.choice import unbeaten
from hessian_surgery.evidence.difference import Difference, by_standard_error
from hessian_surgery.evidence.noise_free_sigma import corrected_sigma, resampled_sigma
from hessian_surgery.evidence.resampled_pairs import count_by_class, resample_images
from hessian_surgery.seeding import numpy_generator
from hessian_surgery.types import Array

# Resamples of the images; with many classes fewer, but their product stays: σ is then a mean over
# more classes, and known better.
RESAMPLES = 2000
RESAMPLED_CLASSES = 200_000
FEWEST = 200


@dataclass(frozen=True)
class Tally:
    """Figures of one result, by resample and split (R + 1, S); row 0 is the images themselves.

    A split without predictions holds NaN.

    Attributes:
        accuracy: accuracy over all images.
        sigma: σ of the class accuracies, as measured.
        clean: σ without sampling noise, which differences of σ are taken of.
        worst: the worst class's accuracy.
        balanced: mean of the class accuracies.
        missed: how far targets are missed, on average; 0 if there are none.
        per_class: class accuracies on the images themselves (S, C).
    """

    accuracy: Array
    sigma: Array
    clean: Array
    worst: Array
    balanced: Array
    missed: Array
    per_class: Array

    @property
    def valid(self) -> Array:
        """Return which splits have predictions (S,)."""
        return ~np.isnan(self.sigma[0])


def count_resamples(classes: int) -> int:
    """How many resamples are drawn."""
    return max(FEWEST, min(RESAMPLES, RESAMPLED_CLASSES // classes))


def draw_weights(labels: Array, seed: int, resamples: int = RESAMPLES) -> Array:
    """Draw how often each image occurs (R + 1, N).

    It is once in row 0. The other rows are resamples within each class.
    """
    drawn = resample_images(labels, numpy_generator(seed, "compare-bootstrap"), resamples)
    return np.vstack([np.ones(len(labels)), drawn])


def tally(
    predicted: Array,
    labels: Array,
    heldout: Array,
    weights: Array,
    classes: int,
    counts: Array | None = None,
    targets: Mapping[int, float] | None = None,
) -> Tally:
    """Compute the figures of predictions (S, N).

    Args:
        predicted: predicted classes (S, N); a row of −1 is a split without predictions.
        labels: true classes (N,).
        heldout: which images each split is judged on (S, N) bool.
        weights: how often each image occurs in each resample (R + 1, N).
        classes: C.
        counts: `count_by_class` of the held-out images, if it is known.
        targets: accuracies to reach, by class number.
    """
    hits = count_by_class((predicted == labels) & heldout, labels, weights, classes)
    counts = count_by_class(heldout, labels, weights, classes) if counts is None else counts
    # If a resample has no held-out image of a class, the class keeps its accuracy on the images
    # themselves.
    with np.errstate(invalid="ignore", divide="ignore"):
        own = np.broadcast_to(hits[0] / counts[0], hits.shape).copy()
        rate = np.divide(hits, counts, out=own, where=counts > 0)
        rate[:, (predicted < 0).all(axis=1)] = np.nan
        accuracy = np.where(np.isnan(rate).any(axis=2), np.nan, hits.sum(axis=2) / counts.sum(axis=2))
    clean = resampled_sigma(rate, rate[0], counts[0], counts)
    clean[0] = corrected_sigma(rate[0], counts[0])
    short = [np.maximum(0.0, wanted - rate[:, :, j]) for j, wanted in (targets or {}).items()]
    missed = np.mean(short, axis=0) if short else np.zeros_like(accuracy)
    return Tally(accuracy, rate.std(axis=2), clean, rate.min(axis=2), rate.mean(axis=2), missed, rate[0])


def gap_to_front(found: Tally, front: list[Tally], nothing: Tally) -> Array:
    """Compute σ minus a front's σ at the same accuracy, for each resample (R + 1,).

    Both are without sampling noise. The mean is over the splits that all have.
    """
    both = found.valid & np.all([point.valid for point in front], axis=0)
    if not both.any():
        return np.full(len(found.sigma), np.nan)
    return _mean(found.clean, both) - front_levels(front, nothing, _mean(found.accuracy, both), both)


def front_levels(front: list[Tally], nothing: Tally, wanted: Array, both: Array) -> Array:
    """Compute a front's σ without sampling noise at an accuracy, for each resample (R + 1,).

    Args:
        front: its points; the original model is one more.
        nothing: the original model.
        wanted: the accuracy in each resample (R + 1,).
        both: which splits the means are over (S,).
    """
    points = (nothing, *front)
    accuracy, sigma = (np.stack([_mean(getattr(p, name), both) for p in points]) for name in ("accuracy", "clean"))
    # All resamples use the points that make up the front on the images themselves. If each chose
    # its own, the original model would be on the front in some only, and the front would jump.
    kept = unbeaten(accuracy[:, 0], sigma[:, 0])
    levels = [at_accuracy(*point) for point in zip(accuracy[kept].T, sigma[kept].T, wanted, strict=True)]
    return np.array(levels)


def front_at_loss(front: list[Tally], nothing: Tally, loss: float) -> Array:
    """Compute a front's σ where a given accuracy is lost, for each resample (R + 1,).

    Where the front ends before that, its last point counts.
    """
    both: Array = np.all([point.valid for point in front], axis=0)
    return front_levels(front, nothing, _mean(nothing.accuracy, both) - loss, both)


def _mean(values: Array, chosen: Array) -> Array:
    """The mean over the chosen splits (S,), by resample (R + 1,)."""
    averaged: Array = values[:, chosen].mean(axis=1)
    return averaged


def at_accuracy(accuracy: Array, sigma: Array, wanted: float) -> float:
    """Interpolate σ at an accuracy between points (P,); beyond either end, use that end's σ."""
    order = np.argsort(accuracy)
    return float(np.interp(wanted, accuracy[order], sigma[order]))


def mean_gap(one: Array, other: Array) -> Array:
    """Compute the mean of `one` − `other` over the splits that both have, by resample (R + 1,)."""
    both = ~np.isnan(one[0] - other[0])
    gap: Array = (one - other)[:, both].mean(axis=1) if both.any() else np.full(len(one), np.nan)
    return gap


def difference(values: Array, level: float = 0.05) -> Difference:
    """Return the first value with an interval from the spread of the others, the resamples.

    The share `level` of such intervals may miss the truth.
    """
    return by_standard_error(float(values[0]), values[1:], level)
