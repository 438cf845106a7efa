"""Metrics of predictions: class accuracies, their spread σ, and intervals."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from hessian_surgery.short_repr import short_repr
from hessian_surgery.types import Array


@dataclass(frozen=True)
class Metrics:
    """Accuracies as fractions; lists are in class order.

    Attributes:
        accuracy: share of correct answers over all images.
        balanced_accuracy: mean of the class accuracies.
        sigma: σ, the population standard deviation of the class accuracies.
        worst: the lowest class accuracy.
        per_class: class accuracies (C).
        count: images per class (C).
        interval: Wilson's 95 % interval of each class accuracy (C pairs).

    Example:
        >>> before, after = outcome.findings.heldout.metrics()
        >>> before.count
        [200, 200, 200]
    """

    accuracy: float
    balanced_accuracy: float
    sigma: float
    worst: float
    per_class: list[float]
    count: list[int]
    interval: list[tuple[float, float]]

    __repr__ = short_repr

    def as_dict(self) -> dict[str, Any]:
        """The form that `result.json` holds."""
        return asdict(self)


def class_accuracy(predictions: Tensor, labels: Tensor, classes: int) -> Array:
    """Accuracy of each class (C,); NaN for a class without images."""
    truth = labels.numpy()
    right = np.bincount(truth, weights=(predictions == labels).numpy(), minlength=classes)
    count = np.bincount(truth, minlength=classes)
    return np.divide(right, count, out=np.full(classes, np.nan), where=count > 0)


def sigma(per_class: Array) -> float:
    """σ: the population standard deviation (division by C) of class accuracies."""
    return float(np.std(per_class))


def compute_metrics(predictions: Tensor, labels: Tensor, classes: int) -> Metrics:
    """Compute all metrics of predictions (N,) against labels (N,)."""
    per_class = class_accuracy(predictions, labels, classes)
    count = np.bincount(labels.numpy(), minlength=classes)
    right = np.rint(per_class * count)
    return Metrics(
        accuracy=float((predictions == labels).double().mean()),
        balanced_accuracy=float(per_class.mean()),
        sigma=sigma(per_class),
        worst=float(per_class.min()),
        per_class=per_class.tolist(),
        count=count.tolist(),
        interval=list(zip(*(ends.tolist() for ends in wilson_ends(right, count)), strict=True)),
    )


def wilson_interval(successes: float, trials: float, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a proportion."""
    low, high = wilson_ends(np.array([successes]), np.array([trials]), confidence)
    return float(low[0]), float(high[0])


def wilson_ends(successes: NDArray[Any], trials: NDArray[Any], confidence: float = 0.95) -> tuple[Array, Array]:
    """Both ends of Wilson's score interval, for many proportions at once; counts may be fractions.

    A proportion without trials has NaN.
    """
    square = float(stats.norm.ppf(0.5 + confidence / 2)) ** 2
    trials = np.where(trials > 0, trials, np.nan)
    share = successes / trials
    centre = (share + square / (2 * trials)) / (1 + square / trials)
    far = np.sqrt(square * (share * (1 - share) + square / (4 * trials)) / trials) / (1 + square / trials)
    # Rounding must not lift an end above 0 or below 1, where it is exact.
    low = np.where(successes == 0, 0.0, np.maximum(0.0, centre - far))
    return low, np.where(successes == trials, 1.0, np.minimum(1.0, centre + far))


def sampling_sigma(per_class: Array, count: Array) -> float:
    """σ that sampling alone would give if all classes were equally good.

    From the binomial variance of each accuracy. The factor 1 − 1/C is there because σ is taken
    around the mean of the same accuracies.
    """
    return float(np.sqrt(np.mean(per_class * (1 - per_class) / count) * (1 - 1 / len(per_class))))
