import numpy as np
import pytest
import torch
from report_checks import check_report

import hessian_surgery as hs
from conftest import build, dense_hessian
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.studies import bulk_walk as study
from hessian_surgery.studies.bulk_walk import Route, bulk_walk, walk
from hessian_surgery.studies.study_inputs import open_calibration_data, open_finder

KINDS = ("bulk", "spike", "random")


@pytest.fixture
def recorded(monkeypatch):
    """Every step that a walk takes: the direction, and the weights that it starts from."""
    steps = []
    perturb = hs.ParameterSpace.perturb

    def record(space, direction, scale=1.0):
        steps.append((direction, space.flatten(space.parameters).detach().clone()))
        perturb(space, direction, scale)

    monkeypatch.setattr(hs.ParameterSpace, "perturb", record)
    return steps


def dense_spikes(net, batch, weights, k):
    """The k leading eigenvalues and eigenvectors (k, p) of the dense Hessian at flat weights."""
    space = hs.parameter_space(net)
    before = space.snapshot()
    space.restore(space.split(weights))
    values, vectors = torch.linalg.eigh(dense_hessian(net, *batch))
    space.restore(before)
    return values.flip(0)[:k], vectors.T.flip(0)[:k]


def tiny_walk(kind, batch, length=0.05, wall=0.5):
    """Three steps of a net whose Hessian can be written out."""
    net = build("conv").eval()
    finder = open_finder(net, batch, hs.SpikeSearch(spikes=2, tolerance=1e-9), "*", seed=0)
    return net, walk(finder, open_calibration_data(net, batch), Route(kind, 3, length, wall))


def digits_walk(model, parts, kind, spikes, progress):
    """Two steps of the demo's net."""
    finder = open_finder(model, parts.training, hs.SpikeSearch(spikes=spikes, hessian_samples=32), "*", seed=0)
    return walk(finder, open_calibration_data(model, parts.calibration), Route(kind, 2, 0.1, 0.5), progress)


@pytest.mark.parametrize("kind", KINDS)
def test_each_step_against_the_dense_hessian(kind, batch, recorded):
    net, result = tiny_walk(kind, batch)
    start = recorded[0][1]
    assert result.start_norm == pytest.approx(float(start.norm()))
    for point, (direction, weights) in zip(result.points[1:], recorded, strict=True):
        _, spikes = dense_spikes(net, batch, weights, 2)
        inside = float((spikes @ direction).norm())
        assert float(direction.norm()) == pytest.approx(1)
        assert inside == pytest.approx({"bulk": 0, "spike": 1, "random": inside}[kind], abs=1e-5)
        arrived = weights + 0.05 * direction
        values, spikes = dense_spikes(net, batch, arrived, 2)
        assert point.lambda_max == pytest.approx(float(values[0]), rel=1e-6)
        assert point.bulk_alignment == pytest.approx(np.sqrt(max(0.0, 1 - inside**2)), abs=1e-5)
        outside = direction - spikes.T @ (spikes @ direction)
        assert point.bulk_alignment_after == pytest.approx(float(outside.norm()), abs=1e-5)
        assert point.displacement == pytest.approx(float((arrived - start).norm()))
        assert point.relative_displacement == pytest.approx(point.displacement / result.start_norm)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_come_back_and_the_start_is_the_model(kind, trained, digits_parts):
    before = {name: t.clone() for name, t in trained.state_dict().items()}
    seen = []
    result = digits_walk(trained, digits_parts, kind, 3, lambda *told: seen.append(told))
    assert all(torch.equal(t, before[name]) for name, t in trained.state_dict().items())
    assert seen == sorted(seen)
    assert seen[-1] == (1000, 1000)
    labels = digits_parts.calibration.labels
    logits = compute_logits(hs.Classifier(trained), digits_parts.calibration)
    start = result.points[0]
    assert [point.step for point in result.points] == [0, 1, 2]
    assert start.displacement == 0
    assert start.loss == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)), rel=1e-5)
    assert start.accuracy == pytest.approx(float((logits.argmax(1) == labels).double().mean()))
    assert np.average(start.per_class, weights=digits_parts.calibration.counts) == pytest.approx(start.accuracy)


def test_weights_come_back_after_a_failure(trained, digits_parts, recorded):
    before = {name: t.clone() for name, t in trained.state_dict().items()}

    def stop(done, total):
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        digits_walk(trained, digits_parts, "bulk", 2, stop)
    assert recorded
    assert all(torch.equal(t, before[name]) for name, t in trained.state_dict().items())


def test_a_wall_gives_up_the_direction_for_good(batch, recorded):
    """With τ close to 1, even a small change of the direction is a wall."""
    _, result = tiny_walk("bulk", batch, wall=1 - 1e-12, length=0.5)
    assert [point.wall for point in result.points] == [False, False, True, True]
    directions = torch.stack([direction for direction, _ in recorded])
    overlap = directions @ directions.T - torch.eye(3, dtype=torch.float64)
    assert overlap.abs().max() < 1e-10
    _, free = tiny_walk("bulk", batch, wall=0.0, length=0.5)
    assert not any(point.wall for point in free.points)


@pytest.mark.full
def test_three_walks_from_one_vector(trained, digits_parts, recorded, tmp_path):
    search = hs.SpikeSearch(spikes=9, hessian_samples=64)
    result = bulk_walk(trained, digits_parts.training, digits_parts.calibration, search, seed=1, steps=3)
    bulk, spike, random = (getattr(result, kind).points for kind in KINDS)
    assert [getattr(result, kind).kind for kind in KINDS] == list(KINDS)
    assert bulk[0] == spike[0] == random[0]
    assert spike[-1].loss - spike[0].loss > 10 * abs(bulk[-1].loss - bulk[0].loss)
    assert min(point.bulk_alignment for point in bulk[1:]) > 0.9999
    assert max(point.bulk_alignment for point in spike[1:]) < 1e-5
    assert random[-1].displacement == pytest.approx(0.3, rel=1e-5)
    # The first steps come from one vector: the bulk walk takes its part off the spikes.
    first_bulk = recorded[0][0]
    first_random = recorded[6][0]
    aligned = float(first_bulk @ first_random)
    assert aligned == pytest.approx(random[1].bulk_alignment, abs=1e-5)
    check_report(study, result, tmp_path)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"kind": "sideways"}, "kind: got 'sideways'; it must be one of bulk, spike, random"),
        ({"steps": 0}, "steps: got 0"),
        ({"length": 0.0}, "length: got 0.0"),
        ({"wall": 1.0}, "wall: got 1.0"),
    ],
)
def test_a_bad_route_is_named(option, message):
    route = {"kind": "bulk", "steps": 2, "length": 0.1, "wall": 0.5}
    with pytest.raises(hs.InputError, match=message):
        Route(**route | option)
