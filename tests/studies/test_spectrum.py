import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import hessian_surgery as hs
from conftest import build, dense_hessian
from hessian_surgery.curvature.density import Density
from hessian_surgery.report.figure_style import save_figure
from hessian_surgery.studies.bulk_statistics import measure_bulk
from hessian_surgery.studies.spectrum import describe, draw, spectrum_study


def test_spikes_and_trace_are_the_dense_ones(batch):
    net = build("conv")
    exact = torch.linalg.eigvalsh(dense_hessian(net, *batch)).flip(0).numpy()
    found = spectrum_study(net, batch, hs.SpikeSearch(spikes=3, tolerance=1e-8), density_steps=40, probes=40)
    assert np.allclose(found.spectrum.eigenvalues, exact[:3], rtol=1e-6)
    assert abs(found.bulk.trace - exact.sum()) < 4 * found.bulk.trace_se
    assert found.bulk.spike_share == pytest.approx(exact[:3].sum() / found.bulk.trace)
    assert (found.weights, found.samples) == (len(exact), 10)


def test_as_many_steps_as_spikes_show_every_ritz_value(batch):
    """The paper's table 2: ten values of ten steps, of which the last may be below zero."""
    net = build("conv")
    search = hs.SpikeSearch(spikes=10, lanczos_steps=10)
    found = spectrum_study(net, batch, search, density_steps=30, probes=5)
    values = found.spectrum.eigenvalues
    assert len(values) == 10
    assert values[0] > 0 > values[-1]
    longer = spectrum_study(net, batch, hs.SpikeSearch(spikes=2), density_steps=30, probes=5)
    assert found.bulk.median == pytest.approx(longer.bulk.median, rel=0.5)
    assert found.bulk.spike_share == pytest.approx(values[values > 0].sum() / found.bulk.trace)
    assert len(draw(found).axes) == 2
    assert draw(replace(found, density=None, bulk=None)).axes[0].get_yscale() == "symlog"
    content = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert content["eigenvalues"][-1] < 0


def test_gauss_newton_of_some_layers(batch):
    net = build("conv")
    space = hs.parameter_space(net, "4.*")
    operator = hs.GaussNewton(net, batch, space)
    rows = operator @ torch.eye(space.dimension, dtype=torch.float64)
    exact = torch.linalg.eigvalsh(rows).flip(0).numpy()
    search = hs.SpikeSearch(spikes=2, micro_batch=4, tolerance=1e-8)
    found = spectrum_study(net, batch, search, parameters="4.*", operator="gauss-newton", density=False)
    assert np.allclose(found.spectrum.eigenvalues, exact[:2], rtol=1e-6)
    assert found.density is None
    assert found.bulk is None


def test_the_bulk_by_hand():
    density = Density((np.array([8.0, 4.0, 0.3, 0.1, -0.2]),), (np.array([0.01, 0.01, 0.2, 0.5, 0.28]),), 1e-5, 100)
    bulk = measure_bulk(density, np.array([8.0, 4.0]))
    assert bulk.median == pytest.approx(0.1)
    assert bulk.anisotropy == pytest.approx(80)
    assert bulk.quantiles[0] == pytest.approx(0.3)
    assert bulk.trace == pytest.approx(100 * (0.08 + 0.04 + 0.06 + 0.05 - 0.056))
    assert bulk.trace_se is None
    assert bulk.resolution == pytest.approx(0.25)
    assert bulk.negative_share == 0


@pytest.mark.full
def test_the_report_in_words_figures_and_files(trained, digits_parts, tmp_path):
    found = spectrum_study(trained, digits_parts.training, hs.SpikeSearch(basis="disk"), density_steps=20, probes=3)
    text = describe(found)
    assert "9 of 9 have converged to 0.01" in text
    assert "on disk in" in text
    assert "the trace is" in text
    content = json.loads(json.dumps(found.as_dict()))
    assert content["memory"]["place"] == "disk"
    assert content["products"] == found.spectrum.steps
    for result in (found, replace(found, density=None, bulk=None)):
        save_figure(draw(result), tmp_path / "figure.svg")
        assert "λ" in (tmp_path / "figure.svg").read_text()
    found.save_vectors(tmp_path / "vectors.safetensors")
    stored = load_file(tmp_path / "vectors.safetensors")
    assert torch.equal(stored["vectors"], found.spectrum.vectors)
    assert stored["eigenvalues"].tolist() == found.spectrum.eigenvalues.tolist()


def test_an_unknown_operator_is_named(batch):
    with pytest.raises(hs.InputError, match="operator: got 'fisher'; it must be hessian or gauss-newton"):
        spectrum_study(build("conv"), batch, operator="fisher")
