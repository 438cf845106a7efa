"""S by gradients, against autograd written out in float64 and against finite differences on the
digits net.
"""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hessian_surgery as hs
from conftest import build
from hessian_surgery.data.splits import cap_per_class
from hessian_surgery.directions import soft_accuracy
from hessian_surgery.directions.logit_changes import logits_after
from hessian_surgery.evidence.accuracies import margins
from hessian_surgery.paper.sensitivity_gradients import MATCH, gradient_sensitivity, matched_temperature


def spectrum_of(model, vectors):
    """A spectrum whose spikes are the rows of `vectors` (K, p)."""
    k = len(vectors)
    return hs.Spectrum(np.arange(k, 0, -1.0), vectors, np.zeros(k), 0.01, k, hs.parameter_space(model))


def random_spikes(model, k, seed=0):
    space = hs.parameter_space(model)
    drawn = torch.randn(space.dimension, k, dtype=space.dtype, generator=torch.Generator().manual_seed(seed))
    return spectrum_of(model, torch.linalg.qr(drawn).Q.T.contiguous())


def dense(model, spectrum, inputs, labels, temperature, classes=3):
    """S by definition: one autograd call per class over all of its images, as a sigmoid of the
    margin.
    """
    model = model.eval()
    columns = []
    for label in range(classes):
        logits = model(inputs[labels == label]) / temperature
        others = torch.cat([logits[:, :label], logits[:, label + 1 :]], dim=1).logsumexp(dim=1)
        soft = torch.sigmoid(logits[:, label] - others).mean()
        slopes = torch.autograd.grad(soft, spectrum.space.parameters)
        columns.append(spectrum.vectors @ spectrum.space.flatten(slopes))
    return torch.stack(columns, dim=1).numpy()


@pytest.mark.parametrize("k", [1, 5, 13])  # 13 spikes: two gradients are held at once
@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_it_is_the_gradient_of_soft_accuracy(net, batch, k, batch_size):
    spectrum = random_spikes(net, k)
    found = gradient_sensitivity(net, spectrum, batch, temperature=0.7, batch_size=batch_size)
    assert found.shape == (k, 3)
    assert np.abs(found - dense(net, spectrum, *batch, 0.7)).max() < 1e-10


def test_it_is_the_limit_of_differences_of_soft_accuracy(net, batch):
    spectrum, step = random_spikes(net, 2), 1e-5
    found = gradient_sensitivity(net, spectrum, batch, temperature=0.5)
    net.eval()

    def soft(direction, length):
        before = spectrum.space.snapshot()
        spectrum.space.perturb(direction, length)
        with torch.no_grad():
            sure = torch.softmax(net(batch[0]) / 0.5, dim=1).gather(1, batch[1][:, None])[:, 0]
        spectrum.space.restore(before)
        return np.array([float(sure[batch[1] == j].mean()) for j in range(3)])

    for i, row in enumerate(found):
        slope = (soft(spectrum.vector(i), step) - soft(spectrum.vector(i), -step)) / (2 * step)
        assert row == pytest.approx(slope, abs=1e-8)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.floats(-3, 3), min_size=2, max_size=2))
def test_it_is_linear_in_the_spikes(weights):
    model = build("conv")
    data = (torch.randn(9, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), torch.arange(9) % 3)
    two = random_spikes(model, 2)
    mixed = spectrum_of(model, torch.tensor([weights], dtype=torch.float64) @ two.vectors)
    one, other = (gradient_sensitivity(model, s, data, temperature=1.0) for s in (two, mixed))
    assert other[0] == pytest.approx(np.array(weights) @ one, abs=1e-12)


@settings(deadline=None, max_examples=20)
@given(st.permutations(range(9)), st.floats(-50, 50))
def test_neither_the_order_of_images_nor_a_constant_on_all_logits_matters(order, shift):
    data = (torch.randn(9, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), torch.arange(9) % 3)
    model = build("batchnorm")
    spectrum, order = random_spikes(model, 3), torch.tensor(order)
    shifted = hs.Classifier(model, lambda module, x: module(x) + shift)
    one = gradient_sensitivity(model, spectrum, data, temperature=0.3)
    other = gradient_sensitivity(shifted, spectrum, (data[0][order], data[1][order]), temperature=0.3)
    assert other == pytest.approx(one, abs=1e-10)


def test_the_scale_of_logits_does_not_matter_with_a_matched_temperature(net, batch):
    """Answers do not change with the scale, so neither may S."""
    spectrum = random_spikes(net, 3)
    scaled = hs.Classifier(net, lambda module, x: 7 * module(x))
    one, other = (gradient_sensitivity(model, spectrum, batch, epsilon=0.1) for model in (net, scaled))
    assert other == pytest.approx(one, rel=1e-5)


def test_a_class_without_images_is_nan_as_it_is_by_differences(net, batch):
    present = batch[1] != 1
    data = hs.as_labelled((batch[0][present], batch[1][present]), classes=["a", "b", "c"])
    spectrum = random_spikes(net, 2)
    found = gradient_sensitivity(net, spectrum, data, temperature=0.7)
    assert np.isnan(found).tolist() == np.isnan(hs.sensitivity(net, spectrum, data)).tolist()
    assert np.allclose(found[:, [0, 2]], dense(net, spectrum, *batch, 0.7)[:, [0, 2]], atol=1e-10)


@pytest.mark.parametrize(("k", "most"), [(3, 1), (11, 1), (12, 2)])
def test_few_class_gradients_are_held_at_once(net, batch, monkeypatch, k, most):
    """Of those that were made, only these are still there when the next one is done."""
    made, alive, gradient = [], [], soft_accuracy._mean_gradient

    def watched(*arguments):
        gc.collect()
        result = gradient(*arguments)
        made.append(weakref.ref(result))
        alive.append(sum(ref() is not None for ref in made))
        return result

    monkeypatch.setattr(soft_accuracy, "_mean_gradient", watched)
    gradient_sensitivity(net, random_spikes(net, k), batch, temperature=1.0)
    assert len(made) == 3
    assert max(alive) == most


def test_weights_mode_and_gradients_are_left_alone(trained, digits_parts):
    before = {name: t.clone() for name, t in trained.state_dict().items()}
    trained.train()
    some, seen = cap_per_class(digits_parts.calibration, 5), []
    gradient_sensitivity(trained, random_spikes(trained, 2), some, progress=lambda *done: seen.append(done))
    assert all(torch.equal(t, before[name]) for name, t in trained.state_dict().items())
    assert trained.training
    assert all(p.grad is None and p.requires_grad for p in trained.parameters())
    assert seen == [(i + 1, 10) for i in range(10)]


def test_only_some_weights(trained, digits_parts):
    space = hs.parameter_space(trained, "*bias")
    vectors = torch.eye(space.dimension)[:3]
    spectrum = hs.Spectrum(np.ones(3), vectors, np.zeros(3), 0.01, 3, space)
    some = cap_per_class(digits_parts.calibration, 5)
    whole = hs.parameter_space(trained)
    padded = torch.zeros(3, whole.dimension)
    at, seen = 0, 0
    for name, parameter in zip(whole.names, whole.parameters, strict=True):
        if name in space.names:
            padded[:, at : at + parameter.numel()] = vectors[:, seen : seen + parameter.numel()]
            seen += parameter.numel()
        at += parameter.numel()
    one = gradient_sensitivity(trained, spectrum, some, temperature=1.0)
    other = gradient_sensitivity(trained, spectrum_of(trained, padded), some, temperature=1.0)
    assert one == pytest.approx(other, rel=1e-4, abs=1e-7)


@pytest.fixture
def spikes(trained, digits_parts):
    return hs.lanczos(hs.Hessian(trained, hs.hessian_batch(digits_parts.training, 128)), 9)


def test_it_agrees_with_differences_on_digits(trained, digits_images, spikes):
    epsilon = float(np.sqrt(0.1 / spikes.eigenvalues[0]))
    soft = gradient_sensitivity(trained, spikes, digits_images, epsilon)
    hard = hs.sensitivity(trained, spikes, digits_images, epsilon)
    assert np.corrcoef(soft.ravel(), hard.ravel())[0, 1] > 0.9
    large = np.abs(hard) > np.abs(hard).max() / 4
    assert (np.sign(soft) == np.sign(hard))[large].all()
    assert 0.5 < np.linalg.norm(soft) / np.linalg.norm(hard) < 2  # the same units


def test_the_temperature_follows_the_probe(trained, digits_images, spikes):
    """By hand over all images and spikes: the sample that it is matched on says nearly the same."""
    space, classifier = spikes.space, hs.Classifier(trained)
    changes = []
    for i in range(len(spikes)):
        up, down = (logits_after(classifier, space, s * 0.1 * spikes.vector(i), digits_images) for s in (1, -1))
        changes.append((margins(up, digits_images.labels) - margins(down, digits_images.labels)) / 2)
    expected = MATCH * float(torch.stack(changes).square().mean().sqrt())
    found = matched_temperature(classifier, spikes, digits_images, 0.1)
    assert found == pytest.approx(expected, rel=0.25)
    assert matched_temperature(classifier, spikes, digits_images, 0.001) == pytest.approx(found / 100, rel=0.1)
    flipped = replace(spikes, vectors=-spikes.vectors)
    assert matched_temperature(classifier, flipped, digits_images, 0.1) == pytest.approx(found, rel=1e-6)


def test_a_probe_that_breaks_the_model_is_named(trained, digits_parts, spikes):
    with pytest.raises(hs.InputError, match="epsilon: a probe of amplitude 1e\\+30 makes logits that are not finite"):
        gradient_sensitivity(trained, spikes, digits_parts.calibration, 1e30)


@pytest.mark.parametrize("setting", [{"epsilon": 0.0}, {"epsilon": -1.0}, {"temperature": 0.0}])
def test_bad_settings_are_named(net, batch, setting):
    with pytest.raises(hs.InputError, match=next(iter(setting))):
        gradient_sensitivity(net, random_spikes(net, 1), batch, **setting)
