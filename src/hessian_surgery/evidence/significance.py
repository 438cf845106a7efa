"""Exact tests of paired counts, their correction for many classes, and what they can detect."""

from bisect import bisect_left
from functools import lru_cache

import numpy as np
from scipy import stats


@lru_cache(maxsize=4096)
def mcnemar(gained: int, lost: int) -> float:
    """P-value of the exact two-sided McNemar test: are gains and losses equally likely?"""
    changed = gained + lost
    return float(stats.binomtest(gained, changed).pvalue) if changed else 1.0


def holm(p: list[float]) -> list[float]:
    """Correct p-values for testing all of them at once, by Holm's step-down method."""
    order = np.argsort(p, kind="stable")
    stepped = np.array(p)[order] * np.arange(len(p), 0, -1)
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(stepped))
    return [float(value) for value in corrected]


@lru_cache(maxsize=4096)
def detectable_change(images: int, changed: int, tests: int = 1) -> float:
    """The smallest change of a class's accuracy that the exact McNemar test finds in 4 cases of 5.

    Args:
        images: images of the class.
        changed: how many of them became right or wrong; more, if the change itself needs more.
        tests: classes that are tested at once; the level is 5 % divided by it (Holm's first step).

    Returns:
        The change as a fraction, in steps of one image; 1 if no change could be found.
    """
    # A larger change is found more often.
    nets = range(1, images + 1)
    first = bisect_left(nets, 0.8, key=lambda net: _power(net, max(changed, net), 0.05 / tests))
    return nets[first] / images if first < images else 1.0


def _power(net: int, changed: int, level: float) -> float:
    """How often the test detects gains that exceed losses by `net`, among `changed` images."""
    critical = int(stats.binom.ppf(level / 2, changed, 0.5))
    if stats.binom.cdf(critical, changed, 0.5) > level / 2:
        critical -= 1
    share = (changed + net) / (2 * changed)
    return float(stats.binom.cdf(critical, changed, 1 - share)) if critical >= 0 else 0.0
