from dataclasses import replace

import numpy as np
import pytest
import torch

import hessian_surgery as hs
from conftest import build, dense_hessian, operate
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.problem import prepare
from hessian_surgery.operation.state_file import load_state, save_state
from hessian_surgery.paper.deflation_phases import accumulate, keep, overlap, staleness
from hessian_surgery.paper.loop import LOOP, iterate, start


@pytest.fixture
def phased(quick):
    return replace(quick, iterations=2, phases=3, search=replace(quick.search, spikes=4), amplitude=0.03)


def test_each_phase_takes_the_next_spikes(trained, digits_parts, phased):
    """On weights that do not move, the phases give the spectrum in slices, and eq. 10 gives the
    amplitudes.
    """
    search = replace(phased.search, tolerance=1e-4)
    config = replace(phased, iterations=1, rollback_sigma=0.0, rollback_drop=0.0, search=search)
    problem, _ = prepare(trained, digits_parts.training, digits_parts.calibration, config)
    exact = hs.lanczos(hs.Hessian(trained, problem.finder.data), 12, tolerance=1e-4).eigenvalues
    before = problem.space.snapshot()
    state = start(problem)
    for phase in range(3):
        state, record = iterate(problem, state, Observer())
        problem.space.restore(before)
        assert record.phase == phase + 1
        assert np.allclose(record.eigenvalues, exact[4 * phase : 4 * phase + 4], rtol=1e-3)
        assert record.alpha_max == pytest.approx(0.03 * np.sqrt(exact[0] / record.eigenvalues[0]), rel=1e-3)
        if phase:
            assert record.deflation["vectors"] == 4 * phase
            assert record.deflation["overlap"] < 4e-5  # the paper's own figure
            assert record.deflation["stale"] < 1e-3  # nothing has moved
        else:
            assert record.deflation is None


def test_spikes_that_have_not_converged_are_new_too(trained, digits_parts, phased):
    """Five steps leave four spikes unconverged: they keep a part of the start vector."""
    config = replace(phased, iterations=1, search=replace(phased.search, lanczos_steps=5))
    problem, _ = prepare(trained, digits_parts.training, digits_parts.calibration, config)
    before = problem.space.snapshot()
    state = start(problem)
    for _ in range(2):
        state, record = iterate(problem, state, Observer())
        problem.space.restore(before)
    assert max(record.residuals) > 0.1
    assert record.deflation["overlap"] < 4e-5


def test_a_phased_operation_runs_whole(trained, digits_parts, phased):
    outcome = operate(trained, digits_parts, phased)
    assert [record.phase for record in outcome.iterations] == [1, 1, 2, 2, 3, 3]
    stale = [record.deflation and record.deflation.get("stale") for record in outcome.iterations]
    assert [value is not None for value in stale] == [False, False, True, False, True, False]
    assert outcome.as_dict()["iterations"][4]["deflation"]["vectors"] == 8
    assert outcome.ended == "Ended after 6 iterations, the most that is allowed."


def test_a_phased_run_goes_on_where_it_was(trained, digits_parts, phased, tmp_path):
    problem, _ = prepare(trained, digits_parts.training, digits_parts.calibration, phased)
    state = start(problem)
    for _ in range(2):
        state, _ = iterate(problem, state, Observer())
    assert state.controller is None
    save_state(tmp_path, problem, LOOP.pack(tmp_path, problem, state, "identity"), "identity")
    whole, expected = iterate(problem, state, Observer())
    _, again = load_state(tmp_path, problem, "identity", LOOP.unpack)
    resumed, found = iterate(problem, again, Observer())
    assert replace(found, seconds={}) == replace(expected, seconds={})
    assert torch.equal(resumed.deflated, whole.deflated)
    with pytest.raises(hs.InputError, match="other options"):
        load_state(tmp_path, problem, "another", LOOP.unpack)


def test_phases_beyond_the_curvature_end_the_run(digits_parts, quick):
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    for parameter in net.parameters():
        torch.nn.init.zeros_(parameter)
    config = replace(quick, iterations=1, phases=3, search=replace(quick.search, spikes=9), parameters="*.bias")
    outcome = operate(net, digits_parts, config)
    assert len(outcome.iterations) == 1
    said = "Ended after 1 iteration, as no spikes were left: after 9 spikes the curvature left is rounding ("
    assert outcome.ended.startswith(said)


def test_staleness_and_overlap_by_hand(batch):
    net = build("conv")
    matrix = dense_hessian(net, *batch)
    vectors = torch.linalg.eigh(matrix).eigenvectors.flip(1).T
    hessian = hs.Hessian(net, batch)
    assert staleness(hessian, vectors[:3], 3) < 1e-10
    turned = (vectors[:1] + vectors[1:2]) / 2**0.5
    product = matrix @ turned[0]
    leaked = product - turned[0] * (turned[0] @ product)
    assert staleness(hessian, turned, 1) == pytest.approx(float(leaked.norm() / product.norm()))
    spectrum = hs.lanczos(hessian, 2, tolerance=1e-10)
    assert overlap(turned, spectrum) == pytest.approx(0.5**0.5, abs=1e-6)
    together = accumulate(turned, replace(spectrum, vectors=spectrum.vectors[1:], eigenvalues=spectrum.eigenvalues[1:]))
    assert torch.allclose(together @ together.T, torch.eye(2, dtype=torch.float64), atol=1e-12)
    assert torch.equal(keep(together, spectrum.space, spectrum.storage), together)
