"""σ without sampling noise: what remains of σ after the part that few images cause by themselves.

Few images spread the measured class accuracies, so σ as measured is too large; and the more, the
smaller the true σ is. A change of σ as measured is then too small. `benchmarks/coverage.py`
simulates how often the interval of the change without sampling noise holds the truth.
"""

import numpy as np

from hessian_surgery.evidence.difference import Difference, by_standard_error
from hessian_surgery.evidence.resampled_pairs import ResampledPairs
from hessian_surgery.types import Array


def noise_variance(per_class: Array, count: Array) -> Array:
    """The variance that sampling adds to class accuracies (…, C) of `count` images, without bias.

    Dividing by n − 1 makes the binomial variance unbiased. The factor 1 − 1/C is there because σ is
    taken around the mean of the same accuracies.
    """
    noise: Array = np.mean(per_class * (1 - per_class) / np.maximum(count - 1, 1), axis=-1)
    return noise * (1 - 1 / per_class.shape[-1])


def corrected_sigma(per_class: Array, count: Array) -> Array:
    """σ of class accuracies (…, C) without sampling noise; 0 if sampling explains all of it."""
    return np.sqrt(np.maximum(0.0, np.var(per_class, axis=-1) - noise_variance(per_class, count)))


def resampled_sigma(drawn: Array, per_class: Array, own_count: Array, drawn_count: Array) -> Array:
    """σ without sampling noise in each resample, for its standard error.

    Measured accuracies hold noise once, and a resample adds it once more. So the measured ones are
    first pulled towards their mean, until their σ is the one without noise. What a resample adds is
    then all the noise there is, as in a measurement.

    Args:
        drawn: class accuracies in each resample (R, …, C).
        per_class: as measured (…, C).
        own_count: images of each class (…, C), as measured.
        drawn_count: the same in each resample, (R, …, C) or one row for all.
    """
    mean = per_class.mean(axis=-1, keepdims=True)
    measured = np.std(per_class, axis=-1)
    kept = corrected_sigma(per_class, own_count) / np.where(measured > 0, measured, 1.0)
    true_like = mean + kept[..., None] * (per_class - mean)
    spread = np.var(true_like + drawn - per_class, axis=-1)
    return np.sqrt(np.maximum(0.0, spread - noise_variance(drawn, drawn_count)))


def sigma_change(pairs: ResampledPairs) -> Difference:
    """The change of σ without sampling noise, ± 1.96 standard errors from paired resamples."""
    count = pairs.count
    change = corrected_sigma(pairs.after, count) - corrected_sigma(pairs.before, count)
    drawn_after = resampled_sigma(pairs.drawn_after, pairs.after, count, count)
    drawn_before = resampled_sigma(pairs.drawn_before, pairs.before, count, count)
    return by_standard_error(float(change), drawn_after - drawn_before)
