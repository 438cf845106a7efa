import numpy as np
import pytest
import torch
from torch import nn

import hessian_surgery as hs
from hessian_surgery.directions import Directions, Probe, class_gradients, random_directions
from hessian_surgery.evaluation import compute_logits
from hessian_surgery.objective import TEMPERATURE, logit_unit
from hessian_surgery.tangents import logits_after


def derivative(module, space, vector, inputs):
    """d logits / dt at θ + t · vector, by forward-mode differentiation."""
    weights = {name: p.detach() for name, p in module.named_parameters()}
    tangents = dict(zip(space.names, space.split(vector), strict=True))

    def logits(w):
        return torch.func.functional_call(module, w, (inputs,))

    return torch.func.jvp(logits, (weights,), (tangents,))[1]


@pytest.mark.parametrize("family", ["spikes", "class-gradients", "random"])
def test_logit_changes_are_the_derivatives_of_the_logits(examined, digits_images, family):
    """A probe is as long as an operation's step, over which some ReLUs switch: 2 to 3 % off along spikes and class
    gradients, 10 % along random directions, whose steps are longer.
    """
    classifier, subject = examined
    directions, inputs = subject.family(family), digits_images.inputs()
    assert len(directions) == {"spikes": 9, "class-gradients": 10, "random": 4}[family]
    for i in range(len(directions)):
        exact = derivative(classifier.module, directions.space, directions.scales[i] * directions.vector(i), inputs)
        assert (directions.changes[i] - exact).norm() < (0.15 if family == "random" else 0.05) * exact.norm()
        assert float(directions.vector(i).norm()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("family", ["spikes", "class-gradients", "random"])
def test_a_coefficient_of_1_moves_logits_by_their_own_size(examined, digits_images, family):
    classifier, subject = examined
    directions = subject.family(family)
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
    space, before = hs.parameter_space(trained), {n: t.clone() for n, t in trained.state_dict().items()}
    classifier = hs.Classifier(trained)
    logits = compute_logits(classifier, digits_images)
    random_directions(Probe(classifier, space, digits_images, logits), 2)
    after = trained.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    with pytest.raises(RuntimeError):
        logits_after(classifier, space, torch.full((space.dimension,), 1.0), hs.as_labelled((torch.ones(2, 3), [0, 1])))
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_class_gradient_is_that_of_soft_accuracy(trained, digits_parts, digits_images):
    space, classifier = hs.parameter_space(trained), hs.Classifier(trained)
    logits = compute_logits(classifier, digits_images)
    found = class_gradients(Probe(classifier, space, digits_images, logits), digits_parts.hessian)
    ratios = []
    for label in (0, 3, 9):
        members = digits_parts.hessian.subset((digits_parts.hessian.labels == label).nonzero()[:, 0])
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
    return Directions("by hand", space, lambda _: torch.ones(2), np.ones(len(changes)), changes)


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


@pytest.mark.parametrize("family", ["spikes", "class-gradients", "random"])
def test_shares_of_real_directions_are_shares(examined, family):
    shares = examined[1].family(family).bias_share()
    assert ((shares > 0) & (shares < 1)).all()


class Even(nn.Module):
    """Logits that answer to the square of their only weight: at 0 they have no slope."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x + 3 * self.weight.square() * x.flip(1)


def test_both_sides_of_a_difference_are_taken_at_the_same_amplitude():
    torch.manual_seed(0)
    data = hs.as_labelled((torch.randn(30, 3), torch.arange(30) % 3))
    module = Even()
    classifier, space = hs.Classifier(module), hs.parameter_space(module)
    found = random_directions(Probe(classifier, space, data, compute_logits(classifier, data)), 1)
    assert found.changes.abs().max() == 0
