import gc
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import hessian_surgery as hs
from conftest import points, whole_changes
from hessian_surgery.directions import refit
from hessian_surgery.directions.family import Probe
from hessian_surgery.directions.refit import FITS, PULL, refit_directions, refittable
from hessian_surgery.evidence.accuracies import logit_unit
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.model.head import Head
from hessian_surgery.model.head_fit import fit_head
from hessian_surgery.model.temperature import fit_temperature


def make_net(bias=True, sharpness=1.0):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3, bias=bias)).double().eval()
    with torch.no_grad():
        for parameter in net[2].parameters():
            parameter.mul_(sharpness)
    return net


def make_probe(net, data=None, parameters="*", moving=None):
    data = data or points(60, 0)
    data = hs.as_labelled((data.inputs().double(), data.labels), classes=list(data.classes))
    classifier = hs.Classifier(net)
    logits = compute_logits(classifier, data)
    return Probe(classifier, hs.parameter_space(net, parameters), data, logits, moving=moving)


def refitted(net, **options):
    probe = make_probe(net, **options)
    return probe, refit_directions(probe, Head("2", net[2]))


def after(probe, step):
    """The logits of all images after a step, by a forward pass."""
    with probe.space.keeping_weights():
        probe.space.perturb(step)
        return compute_logits(probe.classifier, probe.data)


@pytest.mark.parametrize("bias", [True, False])
def test_an_image_sees_the_head_that_was_fitted_to_the_other_half(bias):
    probe, found = refitted(make_net(bias))
    whole = np.array([found.length])
    for side in (0, 1):
        mine = found.directions.sides == side
        measured = after(probe, found.directions.step(whole, side))[mine] - probe.logits[mine]
        assert torch.allclose(measured, found.changes[mine].to(measured), atol=1e-5)
    changes = whole_changes(found.directions, 3)[0] * found.length
    assert torch.allclose(changes.double(), found.changes.double(), atol=1e-5)
    moved = found.directions.changes.square().mean().sqrt() / logit_unit(probe.logits)
    assert float(moved) == pytest.approx(1, rel=1e-4)


def test_a_step_is_the_mean_of_both_halves():
    _, found = refitted(make_net())
    one, other, both = (found.directions.step(np.array([0.7]), side) for side in (0, 1, None))
    assert torch.allclose((one + other) / 2, both)
    assert not torch.allclose(one, other)


def test_it_is_the_fit_of_the_baseline_once_the_temperature_is_right():
    """A head whose temperature fits already: T is 1, and the two fits are one."""
    net = make_net()
    probe = make_probe(net)
    sharpness = 1.0
    for _ in range(3):
        sides = refit_directions(probe, Head("2", net[2])).directions.sides
        own = sides == 1
        temperature = fit_temperature(probe.logits[own], probe.data.labels[own])
        sharpness /= temperature
        net = make_net(sharpness=sharpness)
        probe = make_probe(net)
    found = refit_directions(probe, Head("2", net[2]))
    features = net[:2](probe.data.inputs())[own].detach().float()
    weight, bias = (parameter.detach().float() for parameter in net[2].parameters())
    fitted, shifted = fit_head(features, probe.data.labels[own], weight, bias, PULL, 3)
    mine = sides == 0
    expected = net[:2](probe.data.inputs())[mine].detach().float() @ (fitted - weight).T + (shifted - bias)
    assert torch.allclose(found.changes[mine].float(), expected, atol=0.02 * float(expected.abs().max()))


def test_a_network_that_is_too_sure_of_itself_is_moved_as_far():
    """Ten times the logits: changes are ten times as large, not ten times more timid."""
    _, plain = refitted(make_net())
    _, sure = refitted(make_net(sharpness=10.0))
    assert torch.allclose(sure.changes, 10 * plain.changes, atol=0.02 * float(sure.changes.abs().max()))


@pytest.mark.parametrize("changed", ["input", "label"])
def test_no_image_sees_its_own_label(monkeypatch, changed):
    """The halves stay as they are, which another label would change."""
    data = points(60, 0)
    _, first = refitted(make_net(), data=data)
    sides = first.directions.sides
    monkeypatch.setattr(refit, "halves", lambda *_: sides)
    inputs, labels = data.inputs().clone(), data.labels.clone()
    if changed == "input":
        inputs[5] += 2.0
    else:
        labels[5] = (labels[5] + 1) % 3
    _, again = refitted(make_net(), data=hs.as_labelled((inputs, labels), classes=list(data.classes)))
    side = int(sides[5])
    assert torch.equal(first.directions.seen_from(0, side), again.directions.seen_from(0, side))
    assert not torch.equal(first.directions.seen_from(0, 1 - side), again.directions.seen_from(0, 1 - side))
    if changed == "label":
        assert torch.equal(first.changes[5], again.changes[5])


def alive(*shape, known=()):
    """The tensors of this shape that are held, but for those that are known."""
    every = [found for found in gc.get_objects() if type(found) is torch.Tensor and found.shape == shape]
    return [found for found in every if not any(found is one for one in known)]


def test_only_the_head_s_entries_are_kept():
    probe = make_probe(net := make_net())
    known = alive(probe.space.dimension)
    found = refit_directions(probe, Head("2", net[2]))
    assert alive(probe.space.dimension, known=known) == []
    expected = {side: found.directions.seen_from(0, side) for side in (0, 1)}
    expected[None] = (expected[0] + expected[1]) / 2
    assert torch.equal(found.directions.vector(0), expected[None])
    for side, vector in expected.items():
        assert vector.dtype == probe.space.dtype
        assert int((vector != 0).sum()) == 3 * 8 + 3
        assert torch.equal(found.directions.combine(np.array([-1.3]), side), -1.3 * vector)


def test_the_logits_that_come_with_features_are_let_go(monkeypatch):
    held = []
    probe = make_probe(net := make_net())
    known = alive(180, 3)

    def fitting(*given):
        held.append(alive(180, 3, known=known))
        return fit_head(*given)

    monkeypatch.setattr(refit, "fit_head", fitting)
    refit_directions(probe, Head("2", net[2]))
    assert held == [[], []]


def test_progress_is_told_of_each_fit():
    told = []
    probe = replace(make_probe(net := make_net()), progress=lambda *given: told.append(given))
    refit_directions(probe, Head("2", net[2]))
    assert told == [*((number, FITS) for number in range(1, FITS + 1)), (1, 1)]


def test_images_that_do_not_move_change_too():
    net = make_net()
    moving = torch.arange(0, 180, 3)
    _, found = refitted(net, moving=moving)
    _, every = refitted(net)
    assert torch.equal(found.changes, every.changes)
    kept = whole_changes(found.directions, 3)[0]
    assert kept[moving].abs().sum(dim=1).min() > 0
    assert not kept[1].any()


def test_a_bias_that_may_not_move_stays():
    probe, found = refitted(make_net(), parameters="2.weight")
    for side in (0, 1):
        mine = found.directions.sides == side
        measured = after(probe, found.directions.step(np.array([found.length]), side))[mine] - probe.logits[mine]
        assert torch.allclose(measured, found.changes[mine].to(measured), atol=1e-5)


def test_without_a_head_that_may_move_there_is_none():
    net = make_net()
    head = Head("2", net[2])
    assert refittable(None, hs.parameter_space(net)) is None
    assert refittable(head, hs.parameter_space(net, "0.*")) is None
    assert refittable(head, hs.parameter_space(net, "2.bias")) is None
    assert refittable(head, hs.parameter_space(net, "2.weight")) is head
