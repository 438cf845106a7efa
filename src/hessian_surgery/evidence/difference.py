"""Difference: after minus before with an interval, and two ways to find one from resamples."""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from hessian_surgery.types import Array


@dataclass(frozen=True)
class Difference:
    """After minus before, with a 95 % interval.

    Example:
        >>> print(hs.Difference(0.012, (-0.003, 0.027)))
        +1.2 pp [-0.3, +2.7]
    """

    difference: float
    interval: tuple[float, float]

    def widened(self, factor: float) -> "Difference":
        """The same with an interval that reaches further by a factor, on either side."""
        low, high = (self.difference + factor * (end - self.difference) for end in self.interval)
        return Difference(self.difference, (low, high))

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.difference:+.1f} pp [{100 * low:+.1f}, {100 * high:+.1f}]"


def by_percentiles(value: float, draws: Array) -> Difference:
    """A value with the middle 95 % of its resamples (R,)."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return Difference(float(value), (float(low), float(high)))


def by_standard_error(value: float, draws: Array, level: float = 0.05) -> Difference:
    """A value ± normal quantile · standard deviation of its resamples (R,).

    Args:
        value: the estimate.
        draws: the same estimate from each resample (R,); only their spread counts.
        level: the share of intervals that may miss the truth.
    """
    half = float(stats.norm.ppf(1 - level / 2) * draws.std(ddof=1))
    return Difference(float(value), (float(value) - half, float(value) + half))
