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


def overfitting_warning(calibration: BeforeAfter, tests: PairedTests, folds: int | None = None) -> str | None:
    """Say that σ fell more on the calibration images than on those that judge, if beyond noise.

    Args:
        calibration: the answers to the calibration images.
        tests: those on the held-out images; in folds, of each image while it was left out.
        folds: how many; None if images were held out.
    """
    before, after = noise_free_sigmas(calibration)
    if after - before >= tests.sigma.interval[0]:
        return None
    others = "the held-out images" if folds is None else "images while they were left out"
    return (
        f"overfitting: σ without sampling noise changed by {100 * (after - before):+.1f} pp on the calibration images, "
        f"but by {tests.sigma} on {others}"
    )
