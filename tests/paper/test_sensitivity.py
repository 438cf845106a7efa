import numpy as np
import pytest
import torch
from torch import nn

import hessian_surgery as hs


class Threshold(nn.Module):
    """Two classes told apart by the sign of x + b; the one weight b shifts the threshold."""

    def __init__(self):
        super().__init__()
        self.b = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        shifted = x[:, 0] + self.b
        return torch.stack([-shifted, shifted], dim=1)


def one_spike(model):
    space = hs.parameter_space(model)
    return hs.Spectrum(np.array([1.0]), torch.ones(1, 1), np.array([0.0]), 0.01, 1, space)


def test_matrix_by_hand():
    """A shift of the threshold by ε = 0.3 helps class 1 and hurts class 0."""
    x = torch.tensor([[-0.4], [-0.3], [-0.2], [-0.1], [0.5], [-0.5], [0.15], [0.25], [0.35], [0.45]]) - 0.05
    data = (x, torch.tensor([0] * 5 + [1] * 5))
    model = Threshold()
    found = hs.sensitivity(model, one_spike(model), data, epsilon=0.3)

    def accuracy(b, label):
        own = x[data[1] == label, 0] + b
        return float(((own > 0) == bool(label)).double().mean())

    expected = [[(accuracy(0.3, j) - accuracy(-0.3, j)) / 0.6 for j in (0, 1)]]
    assert found == pytest.approx(np.array(expected))
    assert found[0, 0] < 0 < found[0, 1]


def test_the_weights_come_back_bit_for_bit_even_after_a_failure(trained, digits_parts):
    before = {name: t.clone() for name, t in trained.state_dict().items()}
    spectrum = hs.lanczos(hs.Hessian(trained, hs.hessian_batch(digits_parts.training, 32)), 2, steps=4)
    seen = []
    matrix = hs.sensitivity(
        trained, spectrum, digits_parts.calibration, 0.1, progress=lambda done, total: seen.append((done, total))
    )
    assert matrix.shape == (2, 10)
    assert seen == [(2, 4), (4, 4)]
    bad = hs.as_labelled((torch.zeros(3, 5), torch.arange(3)), classes=[str(i) for i in range(10)])
    with pytest.raises(RuntimeError):
        hs.sensitivity(trained, spectrum, bad, 0.1)
    assert all(torch.equal(t, before[name]) for name, t in trained.state_dict().items())


def test_flipping_a_spike_flips_its_row(trained, digits_parts):
    spectrum = hs.lanczos(hs.Hessian(trained, hs.hessian_batch(digits_parts.training, 32)), 1, steps=4)
    flipped = hs.Spectrum(spectrum.eigenvalues, -spectrum.vectors, spectrum.residuals, 0.01, 4, spectrum.space)
    one, other = (hs.sensitivity(trained, s, digits_parts.calibration, 0.1) for s in (spectrum, flipped))
    assert one == pytest.approx(-other)


def test_a_bad_probe_is_named(trained, digits_parts):
    with pytest.raises(hs.InputError, match="epsilon: got 0"):
        hs.sensitivity(trained, one_spike(Threshold()), digits_parts.calibration, 0)


def test_a_class_without_images_has_no_sensitivity(trained, digits_parts):
    spectrum = hs.lanczos(hs.Hessian(trained, hs.hessian_batch(digits_parts.training, 32)), 2, steps=4)
    data = digits_parts.calibration
    some = data.subset((data.labels != 3).nonzero()[:, 0])
    found = hs.sensitivity(trained, spectrum, some, 0.1)
    assert np.isnan(found[:, 3]).all()
    expected = hs.sensitivity(trained, spectrum, data, 0.1)
    assert np.delete(found, 3, axis=1).tolist() == np.delete(expected, 3, axis=1).tolist()
