import numpy as np
import pytest
import torch
from test_lanczos import symmetric
from torch import nn

import hessian_surgery as hs
from conftest import dense_hessian
from hessian_surgery.curvature.density import gaussian_sum


@pytest.mark.full
def test_the_density_of_a_net_with_5000_weights_matches_its_exact_spectrum():
    """Within the error of ten probes at every point; exact values come from the dense Hessian."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 96), nn.Tanh(), nn.Linear(96, 34), nn.Tanh(), nn.Linear(34, 3)).double()
    batch = (torch.randn(60, 16, dtype=torch.float64), torch.arange(60) % 3)
    exact = torch.linalg.eigvalsh(dense_hessian(net, *batch)).numpy()
    assert len(exact) > 5000
    density = hs.spectral_density(hs.Hessian(net, batch), steps=90, probes=10, variance=1e-4)
    points = np.linspace(exact[0] - 0.02, exact[-1] + 0.02, 400)
    found, error = density.at(points)
    expected = gaussian_sum(points, exact, np.full(len(exact), 1 / len(exact)), 1e-4)
    seen = expected > 1e-3 * expected.max()
    assert (np.abs(found - expected) <= 4 * error)[seen].all()
    assert np.abs(found - expected).max() < 0.01 * expected.max()
    trace, trace_error = density.trace
    assert abs(trace - exact.sum()) < 4 * trace_error
    assert trace_error < 0.5 * abs(exact.sum())
    assert np.trapezoid(found, points) == pytest.approx(1, abs=0.01)


def test_a_spectrum_of_few_values_is_exact():
    """With a step per distinct eigenvalue the rule is exact, and each probe sees all of them."""
    operator = symmetric([5.0] + [1.0] * 40 + [-0.5] * 59)
    density = hs.spectral_density(operator, steps=20, probes=40)
    for nodes, weights in zip(density.nodes, density.weights, strict=True):
        gaps = np.abs(nodes[:, None] - [5, 1, -0.5])
        assert gaps.min(axis=1)[weights > 1e-9].max() < 1e-8
        assert (weights[gaps.argmin(axis=1) == 0].sum() > 0) & (weights.sum() == pytest.approx(1))
    trace, error = density.trace
    assert abs(trace - 15.5) < 4 * error


def test_the_bulk_is_measured_below_the_spikes():
    operator = symmetric([50.0, 20.0] + [0.01] * 60 + [-0.02] * 38)
    density = hs.spectral_density(operator, steps=10, probes=10)
    assert density.quantile(0.5, below=19) == pytest.approx(0.01)
    assert density.quantile(0.99, below=19) == pytest.approx(0.02)
    assert density.quantile(1.0) == pytest.approx(50)


def test_one_probe_has_no_error_bar_and_the_same_seed_the_same_density():
    operator = symmetric([3.0, 2.0, 1.0, -1.0])
    one = hs.spectral_density(operator, steps=3, probes=1, seed=4)
    assert np.isnan(one.trace[1])
    again = hs.spectral_density(operator, steps=3, probes=1, seed=4)
    assert one.as_dict()["nodes"] == again.as_dict()["nodes"]


def test_progress_and_bad_arguments():
    seen = []
    hs.spectral_density(symmetric([3.0, 2.0, 1.0]), steps=2, probes=2, progress=lambda *counts: seen.append(counts))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    with pytest.raises(hs.InputError, match="probes: got 0"):
        hs.spectral_density(symmetric([1.0]), probes=0)
