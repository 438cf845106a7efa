import numpy as np
import pytest
import torch
from torch import nn

import hessian_surgery as hs
from conftest import points, whole_changes
from hessian_surgery.directions.calibration_gradients import ENOUGH, calibration_gradients
from hessian_surgery.directions.class_gradients import gradient_vectors
from hessian_surgery.directions.family import Probe, join, probe_directions
from hessian_surgery.evidence.accuracies import logit_unit
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.operation import proposal
from hessian_surgery.operation.find_directions import find_directions
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.problem import prepare


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)).double().eval()


def make_probe(count=120):
    model = net()
    data = points(count, 0)
    data = hs.as_labelled((data.inputs().double(), data.labels), classes=list(data.classes))
    classifier = hs.Classifier(model)
    return Probe(classifier, hs.parameter_space(model), data, compute_logits(classifier, data))


def test_an_image_s_change_is_along_the_gradient_of_the_other_half():
    """Against the gradients of each half and a derivative by central differences."""
    probe = make_probe()
    found = calibration_gradients(probe, seed=3)
    assert len(found) == 3
    assert sorted(torch.bincount(found.sides).tolist()) == [180, 180]
    for side in (0, 1):
        other = probe.data.subset((found.sides != side).nonzero()[:, 0])
        _, vector = gradient_vectors(probe, other, "data")
        mine = found.sides == side
        for i in range(3):
            assert torch.allclose(found.seen_from(i, side), vector(i))
            far = 1e-4 * vector(i)
            slope = (probe.change(far) - probe.change(-far)) / 2e-4 * found.scales[i]
            near = 0.05 * logit_unit(probe.logits)
            changes = whole_changes(found, 3)[i]
            assert torch.allclose(changes[mine].double(), slope[mine].double(), atol=near)
    assert torch.allclose(found.vector(1), (found.seen_from(1, 0) + found.seen_from(1, 1)) / 2)
    moved = found.changes.square().mean(dim=(1, 2)).sqrt() / logit_unit(probe.logits)
    assert moved.tolist() == pytest.approx([1, 1, 1], rel=1e-4)


def test_no_image_sees_its_own_label():
    """With another label of one image, what its own half sees changes, but not its own changes."""
    probe = make_probe()
    first = calibration_gradients(probe)
    inputs = probe.data.inputs().clone()
    inputs[5] += 2.0
    data = hs.as_labelled((inputs, probe.data.labels), classes=list(probe.data.classes))
    again = calibration_gradients(Probe(probe.classifier, probe.space, data, probe.logits))
    side = int(first.sides[5])
    for i in range(3):
        assert torch.equal(first.seen_from(i, side), again.seen_from(i, side))
    assert not torch.equal(first.seen_from(0, 1 - side), again.seen_from(0, 1 - side))


def test_too_few_images_give_none():
    assert calibration_gradients(make_probe(2 * ENOUGH - 1)) is None
    assert calibration_gradients(make_probe(2 * ENOUGH)) is not None


def test_a_joined_family_keeps_the_sides():
    probe = make_probe()
    crossed = calibration_gradients(probe)
    plain = probe_directions("plain", ("one",), probe, lambda i: torch.ones(probe.space.dimension).double())
    both = join([plain, crossed])
    assert torch.equal(both.sides, crossed.sides)
    assert torch.equal(both.side_vector(0, 1), plain.vector(0))
    assert torch.equal(both.side_vector(2, 1), crossed.seen_from(1, 1))
    assert torch.equal(both.side_vector(2, None), crossed.vector(1))
    coefficients = np.array([0.5, 0.0, 2.0, 0.0])
    expected = 0.5 * plain.scales[0] * plain.vector(0) + 2 * crossed.scales[1] * crossed.seen_from(1, 0)
    assert torch.allclose(both.step(coefficients, 0), expected)


def test_a_measured_step_moves_each_half_along_what_it_sees():
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)).eval()
    problem = prepare(model, points(60, 1), points(120, 0), hs.SurgeryConfig())[0]
    logits = compute_logits(problem.classifier, problem.calibration_data)
    directions, _ = find_directions(problem, logits, None, Observer())
    coefficients = np.linspace(-0.3, 0.4, len(directions))
    found = proposal.after_coefficients(problem, directions)(coefficients, torch.arange(0, 360, 7))
    for side in (0, 1):
        with problem.space.keeping_weights():
            problem.space.perturb(directions.step(coefficients, side))
            expected = compute_logits(problem.classifier, problem.calibration_data)[::7]
        mine = directions.sides[::7] == side
        assert torch.allclose(found[mine], expected[mine], atol=1e-5)
