"""Overfitting: σ fell further on the images that steps were fitted to than on others."""

import numpy as np

from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.evidence.noise_free_sigma import corrected_sigma
from hessian_surgery.evidence.paired_tests import PairedTests


def noise_free_sigmas(images: BeforeAfter) -> tuple[float, float]:
    """σ without sampling noise, before and after."""
    before, after = images.metrics()
    count = np.array(before.count)
    old, new = (float(corrected_sigma(np.array(metrics.per_class), count)) for metrics in (before, after))
    return old, new


def overfitting_warning(calibration: BeforeAfter, tests: PairedTests) -> str | None:
    """Say that σ fell more on the calibration images than on the held-out ones, if beyond noise.

    Args:
        calibration: the answers to the calibration images.
        tests: those on the held-out images.
    """
    before, after = noise_free_sigmas(calibration)
    if after - before >= tests.sigma.interval[0]:
        return None
    return (
        f"overfitting: σ without sampling noise changed by {100 * (after - before):+.1f} pp on the calibration images, "
        f"but by {tests.sigma} on the held-out images"
    )
