from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import hessian_surgery as hs
from hessian_surgery.evidence.metrics import sigma
from hessian_surgery.operation.driver import run
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.problem import Problem, prepare
from hessian_surgery.operation.warnings import _spike_warnings
from hessian_surgery.paper import loop
from hessian_surgery.paper.amplitude import GammaControl
from hessian_surgery.paper.loop import LOOP, iterate, judge_candidate, score, start
from hessian_surgery.paper.sensitivity import accuracies

BASE = np.array([0.70, 0.80, 0.90])


@pytest.mark.parametrize(
    ("candidate", "accepted"),
    [
        ([0.75, 0.80, 0.85], True),
        ([0.70, 0.80, 0.8301], True),  # a drop of 6.99 pp
        ([0.70, 0.80, 0.829], False),  # a drop of 7.1 pp
        ([0.69, 0.80, 0.901], True),  # σ up by 0.45 pp
        ([0.69, 0.80, 0.906], False),  # σ up by 0.67 pp
    ],
)
def test_rollback_rule_by_hand(candidate, accepted):
    signal = judge_candidate(np.array(candidate), BASE, hs.LoopConfig())
    assert signal.accepted == accepted
    assert signal.max_drop == pytest.approx(max(BASE - candidate))
    assert signal.sigma_after == pytest.approx(np.std(candidate))


def test_score_follows_the_target():
    even, high = np.array([0.7, 0.7]), np.array([0.72, 0.9])
    assert score(even, "sigma") > score(high, "sigma")
    assert score(high, "worst") > score(even, "worst")


@pytest.fixture
def problem(trained, digits_parts, quick) -> Problem:
    return prepare(trained, digits_parts.training, digits_parts.calibration, quick)[0]


@pytest.mark.parametrize(
    ("name", "function"), [("gradients", hs.gradient_sensitivity), ("differences", hs.sensitivity)]
)
def test_one_iteration_moves_along_the_spikes_by_alpha(problem, name, function):
    """θ₁ − θ₀ = Σ α_i q_i, with spikes, S and plan made again by hand."""
    config = replace(problem.config, rollback_drop=1.0, rollback_sigma=1.0, amplitude=0.05, exponent=1)
    config = replace(config, sensitivity=name)
    problem = replace(problem, config=config)
    before = problem.space.flatten(problem.space.snapshot())
    batch = hs.hessian_batch(problem.finder.data, 64, seed=0)
    spectrum = hs.lanczos(hs.Hessian(problem.classifier, batch), 9, tolerance=config.search.tolerance, iteration=1)
    matrix = function(problem.classifier, spectrum, problem.calibration_data, epsilon=0.05)
    step = hs.plan(matrix, problem.base, 0.05, 1)
    state, record = iterate(problem, start(problem), Observer())
    after = problem.space.flatten(problem.space.snapshot())
    assert np.allclose(record.responses.values, matrix, rtol=1e-4, atol=1e-5)
    assert record.coefficients == pytest.approx(step.alpha.tolist(), abs=1e-6)
    expected = spectrum.vectors.T @ torch.tensor(step.alpha, dtype=torch.float32)
    assert torch.allclose(after - before, expected, atol=1e-6)
    assert record.accepted
    assert np.allclose(state.accuracy, accuracies(problem.classifier, problem.calibration_data))
    assert record.sigma == pytest.approx(sigma(state.accuracy))


def test_the_loop_is_asked_for_no_budget_and_limits_count_from_the_start(problem):
    asked = LOOP.asked(replace(problem, config=replace(problem.config, target="worst", reference="start")))
    strong = {name for name, a in zip(problem.calibration_data.classes, problem.base, strict=True) if a > 0.9}
    assert (asked.aim, asked.budget, asked.targets) == ("worst", None, {})
    assert set(asked.limits.values()) == {0.01}
    assert set(asked.limits) <= strong
    assert LOOP.asked(replace(problem, config=replace(problem.config, reference="previous"))).limits == {}


def test_a_rolled_back_iteration_leaves_every_bit(problem):
    config = replace(problem.config, rollback_drop=0.0, rollback_sigma=0.0, amplitude=5.0, control="adam")
    problem = replace(problem, config=config)
    before = problem.space.snapshot()
    state, record = iterate(problem, start(problem), Observer())
    assert not record.accepted
    assert all(torch.equal(p, s) for p, s in zip(problem.space.parameters, before, strict=True))
    assert state.accuracy is problem.base
    assert state.idle == 1
    assert state.controller.value == pytest.approx(5.0 / 20, rel=0.05)


class Script:
    """Stands in for an iteration: accuracies that follow a script, weights that count the
    iterations.
    """

    def __init__(self, monkeypatch, accuracies):
        self.accuracies = [np.array(a) for a in accuracies]
        monkeypatch.setattr(loop, "iterate", self)

    def __call__(self, problem, state, observer):
        with torch.no_grad():
            problem.space.parameters[0].fill_(state.iteration + 1.0)
        kept = self.accuracies[state.iteration]
        controller = state.controller or GammaControl(0.02, 0.1)
        return loop._advance(problem, state, kept, controller), SimpleNamespace(accepted=True, coefficients=[])


class Counting(Observer):
    """Keeps the records."""

    def __init__(self):
        self.records = []

    def iteration(self, record):
        self.records.append(record)


def scripted_loop():
    """The loop with whatever stands in for an iteration now."""
    return replace(LOOP, iterate=loop.iterate)


@pytest.fixture
def scripted():
    model = nn.Linear(2, 3)
    data = hs.as_labelled((torch.randn(30, 2), torch.arange(30) % 3))
    config = hs.LoopConfig(iterations=4)
    space = hs.parameter_space(model)
    return Problem(
        classifier=hs.Classifier(model),
        space=space,
        calibration_data=data,
        config=config,
        base=BASE,
        logits=torch.zeros(30, 3),
        training_counts=torch.full((3,), 10),
    )


@pytest.mark.parametrize(("returned", "weight"), [("best", 2.0), ("last", 4.0)])
def test_which_iterate_is_returned(scripted, monkeypatch, returned, weight):
    script = Script(monkeypatch, [[0.75, 0.8, 0.9], [0.8, 0.8, 0.85], [0.79, 0.8, 0.9], [0.7, 0.8, 0.9]])
    problem = replace(scripted, config=replace(scripted.config, returned=returned))
    accuracy = run(scripted_loop(), problem, Observer()).accuracy
    assert problem.space.parameters[0][0, 0] == weight
    assert accuracy.tolist() == script.accuracies[int(weight) - 1].tolist()


def test_the_start_is_returned_where_nothing_is_better(scripted, monkeypatch):
    Script(monkeypatch, [[0.6, 0.8, 0.9]] * 4)
    start = scripted.space.snapshot()
    run(scripted_loop(), scripted, Observer())
    assert torch.equal(scripted.space.parameters[0], start[0])


def test_patience(scripted, monkeypatch):
    Script(monkeypatch, [[0.75, 0.8, 0.9]] * 4)
    problem = replace(scripted, config=replace(scripted.config, patience=2))
    observer = Counting()
    run(scripted_loop(), problem, observer)
    assert len(observer.records) == 3
    said = "Ended after 3 iterations, as the last 2 gained nothing (patience)."
    assert LOOP.ended(problem, observer.records) == said
    assert LOOP.ended(scripted, [object()] * 4) == "Ended after 4 iterations, the most that is allowed."


def test_gamma_decays_average_is_recorded(problem):
    """Table 5's EMA: 0.7 old + 0.3 new after a kept step, unchanged by a rollback."""
    problem = replace(problem, config=replace(problem.config, control="gamma", iterations=2))
    observer = Counting()
    run(LOOP, problem, observer)
    average = sigma(problem.base)
    for record in observer.records:
        average = 0.7 * average + 0.3 * record.sigma if record.accepted else average
        assert record.smoothed_sigma == pytest.approx(average)
    problem = replace(problem, config=replace(problem.config, control="adam"))
    assert iterate(problem, start(problem), Observer())[1].smoothed_sigma is None


def test_the_papers_nine_directions_whatever_their_sign(trained, digits_parts):
    """Ten steps leave fewer than nine positive Ritz values; a box takes those for the least one."""
    config = replace(hs.paper_config("cifar10"), iterations=1, bound="box")
    problem, _ = prepare(trained, digits_parts.training, digits_parts.calibration, config)
    _, record = iterate(problem, start(problem), Observer())
    values = np.array(record.eigenvalues)
    assert len(values) == 9
    assert values[0] > 0 > values[-1]
    assert np.array(record.responses.values).shape == (9, 10)
    least = values[values > 0].min()
    limit = record.alpha_max * np.sqrt(least / np.maximum(values, least))
    assert (np.abs(record.coefficients) <= limit * (1 + 1e-9)).all()
    warnings = _spike_warnings(problem, [record])
    assert f"only {(values > 0).sum()} of 9 spikes have a positive eigenvalue" in warnings


def test_a_cap_a_redraw_and_the_box(trained, digits_parts, quick):
    search = replace(quick.search, redraw_hessian=True)
    config = replace(quick, iterations=2, search=search, bound="box", control="gamma", calibration_cap=20)
    problem, _ = prepare(trained, digits_parts.training, digits_parts.calibration, config)
    assert problem.calibration_data.counts.tolist() == [20] * 10
    observer = Counting()
    run(LOOP, problem, observer)
    records = observer.records
    assert records[0].eigenvalues != records[1].eigenvalues
    first = records[0]
    limit = first.alpha_max * np.sqrt(min(first.eigenvalues) / np.array(first.eigenvalues))
    assert (np.abs(first.coefficients) <= limit * (1 + 1e-9)).all()


def test_no_spike_is_named(digits_parts, quick):
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(10))

        def forward(self, x):
            return torch.zeros(len(x), 10) + 0 * self.w

    config = replace(quick, search=replace(quick.search, spikes=2))
    problem, _ = prepare(Flat(), digits_parts.training, digits_parts.calibration, config)
    with pytest.raises(hs.InputError, match="no positive eigenvalue"):
        run(LOOP, problem, Observer())
