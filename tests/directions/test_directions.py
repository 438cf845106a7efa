from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import hessian_surgery as hs
from conftest import build, whole_changes
from hessian_surgery.curvature.krylov import gaussian
from hessian_surgery.curvature.lanczos import Spectrum
from hessian_surgery.curvature.memory import Room
from hessian_surgery.directions import class_gradients as gradients
from hessian_surgery.directions import family, rows
from hessian_surgery.directions.biases import bias_directions
from hessian_surgery.directions.class_gradients import class_gradients, gradient_images
from hessian_surgery.directions.family import MICRO, Directions, Probe, join
from hessian_surgery.directions.logit_changes import logits_after
from hessian_surgery.directions.random import random_directions
from hessian_surgery.directions.spikes import spike_directions
from hessian_surgery.evidence.accuracies import TEMPERATURE, logit_unit
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.model.head import find_head
from hessian_surgery.seeding import generator


def derivative(module, space, vector, inputs):
    """d logits / dt at θ + t · vector, by forward-mode differentiation."""
    weights = {name: p.detach() for name, p in module.named_parameters()}
    tangents = dict(zip(space.names, space.split(vector), strict=True))

    def logits(w):
        return torch.func.functional_call(module, w, (inputs,))

    return torch.func.jvp(logits, (weights,), (tangents,))[1]


@pytest.mark.parametrize("name", ["spikes", "class-gradients", "random"])
def test_logit_changes_are_the_derivatives_of_the_logits(examined, digits_images, name):
    """Up to a few percent: some ReLUs switch within a probe, which is as long as a real step.

    2 to 3 % along spikes and class gradients, 10 % along random directions, whose steps are longer.
    """
    classifier, subject = examined
    directions = subject.family(name)
    inputs = digits_images.inputs()
    assert len(directions) == {"spikes": 9, "class-gradients": 10, "random": 4}[name]
    changes = whole_changes(directions, 10)
    for i in range(len(directions)):
        exact = derivative(classifier.module, directions.space, directions.scales[i] * directions.vector(i), inputs)
        assert (changes[i] - exact).norm() < (0.15 if name == "random" else 0.05) * exact.norm()
        assert float(directions.vector(i).norm()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", ["spikes", "class-gradients", "random"])
def test_a_coefficient_of_1_moves_logits_by_their_own_size(examined, digits_images, name):
    classifier, subject = examined
    directions = subject.family(name)
    for i in range(len(directions)):
        step = directions.step(0.01 * np.eye(len(directions))[i])
        moved = logits_after(classifier, directions.space, step, digits_images) - subject.logits
        assert float(moved.square().mean().sqrt()) / 0.01 == pytest.approx(logit_unit(subject.logits), rel=0.05)


def test_a_step_is_the_sum_of_scaled_vectors(examined):
    _, subject = examined
    directions = subject.family("random")
    coefficients = np.array([1.0, 0, -2, 0.5])
    lengths = coefficients * directions.scales
    expected = sum(length * directions.vector(i) for i, length in enumerate(lengths))
    assert torch.allclose(directions.step(coefficients), expected, rtol=1e-5, atol=1e-7)


def test_weights_come_back_bit_for_bit(trained, digits_images):
    space = hs.parameter_space(trained)
    before = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    classifier = hs.Classifier(trained)
    logits = compute_logits(classifier, digits_images)
    random_directions(Probe(classifier, space, digits_images, logits), 2)
    after = trained.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    with pytest.raises(RuntimeError):
        logits_after(classifier, space, torch.full((space.dimension,), 1.0), hs.as_labelled((torch.ones(2, 3), [0, 1])))
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_class_gradient_is_that_of_soft_accuracy(trained, digits_parts, digits_images):
    space = hs.parameter_space(trained)
    classifier = hs.Classifier(trained)
    logits = compute_logits(classifier, digits_images)
    found = class_gradients(Probe(classifier, space, digits_images, logits), digits_parts.training)
    ratios = []
    for label in (0, 3, 9):
        members = digits_parts.training.subset((digits_parts.training.labels == label).nonzero()[:, 0])
        sure = torch.softmax(trained(members.inputs()) / (TEMPERATURE * logit_unit(logits)), dim=1)[:, label].mean()
        slope = space.flatten(torch.autograd.grad(sure, space.parameters))
        ratios.append(slope / found.vector(label))
        strong = slope.abs() > 1e-4
        assert (ratios[-1][strong] > 0).all()
        # The preconditioner is the same for all classes, up to a factor.
        both = strong & (ratios[0] > 0)
        factor = ratios[-1][both] / ratios[0][both]
        assert torch.allclose(factor, factor.median(), rtol=2e-2)


def by_hand(changes):
    space = hs.parameter_space(nn.Linear(1, 1))
    labels = family.numbered("direction", len(changes))
    outputs = torch.arange(changes.shape[2]).expand(changes.shape[1:])
    return Directions("by hand", labels, space, lambda _: torch.ones(2), np.ones(len(changes)), outputs, changes)


def test_the_share_of_a_class_bias():
    torch.manual_seed(0)
    varied = torch.randn(50, 4)
    per_image = torch.randn(50, 1).expand(50, 4)  # the same for all classes: it changes no answer
    constant = torch.tensor([1.0, -1, 2, -2]).expand(50, 4)
    around_0 = varied - varied.mean(dim=0)
    shares = by_hand(torch.stack([constant, constant + 5 * per_image, around_0, varied, around_0 + constant]))
    shares = shares.bias_share()
    assert shares[:3] == pytest.approx([1, 1, 0], abs=1e-6)
    centred = around_0 - around_0.mean(dim=1, keepdim=True)
    assert shares[4] == pytest.approx(500 / float(500 + centred.square().sum()), rel=1e-4)
    assert ((shares >= 0) & (shares <= 1 + 1e-6)).all()


@pytest.mark.parametrize("name", ["spikes", "class-gradients", "random"])
def test_shares_of_real_directions_are_shares(examined, name):
    shares = examined[1].family(name).bias_share()
    assert ((shares > 0) & (shares < 1)).all()


def probe_on(module, data, pattern="*"):
    classifier = hs.Classifier(module)
    return Probe(classifier, hs.parameter_space(module, pattern), data, compute_logits(classifier, data))


def biases_of(module, data, pattern="*"):
    probe = probe_on(module, data, pattern)
    return probe, bias_directions(probe, find_head(probe.classifier, next(data.batches(2, torch.device("cpu")))[0]))


@pytest.fixture
def images():
    """Sixty samples of three classes, in float64."""
    draw = torch.Generator().manual_seed(1)
    return hs.as_labelled((torch.randn(60, 12, generator=draw, dtype=torch.float64), torch.arange(60) % 3))


def test_bias_directions_are_exact_however_long_the_step(net, images):
    probe, found = biases_of(net, images)
    coefficients = np.array([0.7, -3.0, 20.0])
    step = found.step(coefficients)
    moved = logits_after(probe.classifier, probe.space, step, images) - probe.logits
    assert len(found) == 3
    predicted = (torch.tensor(coefficients).float() * found.bias_unit).expand_as(moved)
    assert torch.allclose(moved, predicted, rtol=1e-4)
    assert found.changes.shape == (0, 60, 3)
    assert found.bias_unit / 3**0.5 == pytest.approx(logit_unit(probe.logits))
    names = [name for name, piece in zip(probe.space.names, probe.space.split(step), strict=True) if piece.any()]
    assert names == [probe.space.names[-1]]
    assert names[0].endswith("bias")


def test_there_are_no_bias_directions_if_no_bias_may_move(images):
    assert biases_of(build("conv"), images, "*.weight")[1] is None
    assert biases_of(build("conv"), images, "4.*")[1] is not None
    frozen = build("conv")
    frozen[4].bias.requires_grad_(False)
    assert biases_of(frozen, images)[1] is None
    without = nn.Sequential(nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 3, bias=False)).double()
    assert biases_of(without, images)[1] is None
    beyond = nn.Sequential(nn.Linear(12, 3), nn.LogSoftmax(dim=1)).double()  # the logits are no layer's output
    assert biases_of(beyond, images)[1] is None


def test_a_model_that_is_its_head_has_bias_directions_too(images):
    assert len(biases_of(nn.Linear(12, 3).double(), images)[1]) == 3


def test_every_direction_has_a_label(net, images):
    images = replace(images, classes=("ant", "bee", "cat"))
    probe, bias = biases_of(net, images)
    assert bias.labels == ("bias of ant", "bias of bee", "bias of cat")
    assert class_gradients(probe, images).labels == ("gradient of ant", "gradient of bee", "gradient of cat")
    assert random_directions(probe, 2).labels == ("random 1", "random 2")
    vectors = torch.stack([gaussian(probe.space, generator(i, "test")) for i in range(2)])
    spectrum = Spectrum(np.ones(2), vectors, np.zeros(2), 1e-2, 2, probe.space)
    assert spike_directions(probe, spectrum).labels == ("spike 1", "spike 2")


def test_outputs_beyond_the_classes_have_labels_too(images):
    images = replace(images, classes=("ant", "bee", "cat"))
    _, bias = biases_of(nn.Linear(12, 5).double(), images)
    assert bias.labels == ("bias of ant", "bias of bee", "bias of cat", "bias of output 3", "bias of output 4")


def test_joined_families_keep_their_order_and_add_up(net, images):
    probe, bias = biases_of(net, images)
    families = [bias, random_directions(probe, 2, seed=1), random_directions(probe, 1, seed=2)]
    joined = join(families)
    assert joined.name == "bias+random+random"
    assert joined.labels == (*bias.labels, "random 1", "random 2", "random 1")
    assert len(joined) == 6
    owners = [(owner, i) for owner in families for i in range(len(owner))]
    for i, (owner, own) in enumerate(owners):
        assert torch.equal(joined.vector(i), owner.vector(own))
        assert owner is bias or torch.equal(joined.changes[i - 3], owner.changes[own])
        assert joined.scales[i] == owner.scales[own]
    coefficients = np.array([1.0, -0.5, 2.0, 0.3, -1.0, 0.7])
    parts = [f.step(c) for f, c in zip(families, (coefficients[:3], coefficients[3:5], coefficients[5:]), strict=True)]
    assert torch.allclose(joined.step(coefficients), sum(parts))
    assert (joined.bias_unit, joined.changes.shape) == (bias.bias_unit, (3, 60, 3))
    assert join(families[:1]) is bias


def test_the_preconditioner_is_that_of_its_definition(net):
    """120, 55 and 5 images: batches of 50, 50, 20; 50, 5; 5. Each counts once."""
    draw = torch.Generator().manual_seed(3)
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor([120, 55, 5]))[torch.randperm(180, generator=draw)]
    data = hs.as_labelled((torch.randn(180, 12, generator=draw, dtype=torch.float64), labels))
    probe = probe_on(net, data)
    found = class_gradients(probe, data)
    net.eval()
    temperature = TEMPERATURE * logit_unit(probe.logits)

    def slope(members):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            sure = torch.softmax(net(data.inputs()[members]) / temperature, dim=1)
        right = sure[torch.arange(len(members)), labels[members]].mean()
        return probe.space.flatten(torch.autograd.grad(right, probe.space.parameters))

    groups = [(labels == label).nonzero()[:, 0] for label in range(3)]
    assert gradient_images(data).counts.tolist() == [120, 55, 5]
    means = torch.stack([slope(part) for group in groups for part in group.split(MICRO)])
    assert len(means) == 6
    size = means.square().mean(dim=0).sqrt()
    size = size + size.mean()
    for label, group in enumerate(groups):
        expected = slope(group) / size
        assert torch.allclose(found.vector(label), expected / expected.norm(), rtol=1e-4, atol=1e-7)


def test_a_class_without_training_images_has_no_gradient(net, images):
    two = images.subset((images.labels != 1).nonzero()[:, 0])
    found = class_gradients(probe_on(net, images), two)
    assert found.labels == ("gradient of 0", "gradient of 2")
    assert len(found) == 2
    with pytest.raises(hs.InputError, match="training_data: it has no image"):
        class_gradients(probe_on(net, images), images.subset(torch.arange(0)))


def test_class_gradients_take_equally_many_images_of_each_class(monkeypatch, images):
    monkeypatch.setattr(gradients, "TRAINING_IMAGES", 30)
    uneven = images.subset(torch.cat([torch.arange(0, 60, 3), torch.arange(1, 60, 3), torch.tensor([2, 5])]))
    assert gradient_images(uneven).counts.tolist() == [10, 10, 2]
    monkeypatch.setattr(gradients, "TRAINING_IMAGES", 2)
    assert gradient_images(uneven).counts.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("room", "place"), [(Room(1 << 40, 1 << 40, 0), "device"), (Room(0, 1 << 40, 0), "host"), (Room(0, 0, 0), "disk")]
)
def test_if_there_is_little_room_directions_go_elsewhere_and_stay_the_same(net, images, monkeypatch, room, place):
    probe = probe_on(net, images)
    places = []
    expected = class_gradients(probe, images)

    class Noted(rows.Basis):
        def __init__(self, dimension, dtype, device, storage):
            super().__init__(dimension, dtype, device, storage)
            places.append(storage.place)

    monkeypatch.setattr(rows, "free_room", lambda device: room)
    monkeypatch.setattr(rows, "Basis", Noted)
    found = class_gradients(probe, images)
    assert places == [place, place]  # the gradients, and the logits' changes
    assert torch.equal(found.changes, expected.changes)
    assert found.scales.tolist() == expected.scales.tolist()
    assert torch.equal(found.step(np.ones(3)), expected.step(np.ones(3)))


def test_directions_may_take_a_share_of_the_free_room():
    room = Room(1000, 10_000, 0)
    sizes = (400, 401, 4000, 4001)
    assert [rows.place_rows(size, room) for size in sizes] == ["device", "host", "host", "disk"]


def test_families_on_a_gpu_and_on_the_host_are_joined_on_the_host():
    """On tensors without contents: without a GPU too, they know their device and refuse to mix."""
    space = hs.parameter_space(nn.Linear(1, 1))
    with FakeTensorMode():
        there = torch.empty(3, 5, 4, device="cuda")
        here = torch.empty(2, 5, 4)
        labels = {"a": ("x", "y", "z"), "b": ("x", "y")}
        families = [
            Directions(name, labels[name], space, None, np.ones(len(changes)), torch.empty(5, 4), changes)
            for name, changes in (("a", there), ("b", here))
        ]
        for order in (families, families[::-1]):
            joined = join(order)
            assert (joined.changes.device.type, joined.changes.shape) == ("cpu", (5, 5, 4))
        assert join([families[0], families[0]]).changes.device.type == "cuda"
