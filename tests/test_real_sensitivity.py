"""S by gradients and by finite differences on a real checkpoint."""

import numpy as np
import pytest

import hessian_surgery as hs
from conftest import real
from hessian_surgery.paper.amplitude import curvature_amplitude


@pytest.mark.full
def test_gradients_agree_with_differences_on_cifar10(shared):
    """On 2,500 images. On 1,000, noise in the differences lowers the correlation to 0.92."""
    model, parts = real(shared, "cifar10")
    images = hs.cap_per_class(parts.calibration, 250).resident()
    spectrum = hs.lanczos(hs.Hessian(model.eval(), hs.hessian_batch(parts.training, 64).resident()), 4)
    epsilon = curvature_amplitude(float(spectrum.eigenvalues[0]))
    soft = hs.gradient_sensitivity(model, spectrum, images, epsilon)
    hard = hs.sensitivity(model, spectrum, images, epsilon)
    assert np.corrcoef(soft.ravel(), hard.ravel())[0, 1] > 0.95
    assert 0.7 < np.linalg.norm(soft) / np.linalg.norm(hard) < 1.4
