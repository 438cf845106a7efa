"""Class noise: how much of each class accuracy is likely to be chance (empirical Bayes)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from hessian_surgery.types import Array


@dataclass(frozen=True)
class ClassNoise:
    """What is known of the sampling noise in measured class accuracies.

    Attributes:
        expected: the part of each class accuracy (C,) that is expected to be noise.
        spread: standard deviation (C,) of the noise around that, given how much the classes differ.
        error: standard error (C,) of each class accuracy by itself, which is never less.
    """

    expected: Array
    spread: Array
    error: Array

    @property
    def unseen(self) -> float:
        """The part of σ that cannot be seen, whatever the class accuracies: to add in squares."""
        return float(np.sqrt(np.mean(self.spread**2) * (1 - 1 / len(self.spread))))


def no_noise(classes: int) -> ClassNoise:
    """Accuracies that are taken as they are."""
    return ClassNoise(np.zeros(classes), np.zeros(classes), np.zeros(classes))


def class_noise(per_class: Array, count: NDArray[np.int64]) -> ClassNoise:
    """Estimate the noise in class accuracies (C,), each measured on `count` images (C,).

    Class accuracies vary because the classes differ, with variance V, and because each is measured
    on n_j images, with variance v_j. Given what was measured, the true accuracy of class j is
    expected at its measured distance from the mean times V / (V + v_j), with variance
    V v_j / (V + v_j). The rest of the distance is noise. If the accuracies differ no more than
    chance explains, V is 0 and every difference is noise.

    This is the best linear estimate, whatever the distribution of the true accuracies a. For that,
    v_j must be the variance to expect of a class with n_j images, E[a (1 − a)] / n_j. If it were
    taken from the measured accuracy, classes with few errors would count for more than others.
    """
    between = between_variance(per_class, count)
    weight, mean, variance = _weigh(between, per_class, count)
    spread = np.sqrt(between * variance * weight)
    error = np.sqrt(sampling_variance(per_class, count))
    return ClassNoise(variance * weight * (per_class - mean), spread, error)


def sampling_variance(per_class: Array, count: NDArray[np.int64]) -> Array:
    """Binomial variance (C,) of class accuracies; one right and one wrong answer are added."""
    share = (per_class * count + 1) / (count + 2)
    variance: Array = share * (1 - share) / count
    return variance


def between_variance(per_class: Array, count: NDArray[np.int64]) -> float:
    """The variance V of the true class accuracies (Paule and Mandel's estimate).

    V is such that Σ (a_j − mean)² / (V + v_j) = C − 1, where the mean of the accuracies a_j has the
    weights 1 / (V + v_j). It is 0 if the sum is smaller than that even at V = 0.

    Args:
        per_class: measured class accuracies (C,).
        count: images of each class (C,).
    """

    def excess(between: float) -> float:
        weight, mean, _ = _weigh(between, per_class, count)
        return float(weight @ (per_class - mean) ** 2) - (len(per_class) - 1)

    if excess(0.0) <= 0:
        return 0.0
    return float(brentq(excess, 0.0, 1.0))


def _weigh(between: float, per_class: Array, count: NDArray[np.int64]) -> tuple[Array, float, Array]:
    """Weights (C,), weighted mean and expected sampling variances (C,) at a variance V.

    E[a (1 − a)] is m (1 − m) − V, with the mean m; one right and one wrong answer are added.
    """
    total = count.sum()
    rough = float(count @ per_class / total)
    mixed = max(0.0, rough * (1 - rough) - between)
    variance: Array = (mixed * total + 1) / (total + 2) / count
    weight: Array = 1 / (between + variance)
    return weight, float(weight @ per_class / weight.sum()), variance
