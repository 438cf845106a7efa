"""Expected gains of accuracy, where the true probabilities are known."""

import numpy as np
import pytest
import torch

from hessian_surgery.operation import expected_gain
from hessian_surgery.operation.expected_gain import ExpectedGains, calibrated, expected_gains

SHIFTS = torch.tensor([0.0, 0.4, 0.8, 1.2])[:, None] * torch.tensor([1.0, 0.0, -0.5, -0.5])


def drawn(count, seed, sharpness=1.0, shift=0.0):
    """Logits (n, 4), labels (n,) drawn from their softmax, and these probabilities."""
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(count, 4, generator=draw)
    probabilities = torch.softmax(sharpness * logits + shift, dim=1)
    labels = torch.multinomial(probabilities, 1, generator=draw).squeeze(1)
    return logits, labels, probabilities


def test_calibration_finds_the_true_probabilities():
    logits, labels, truth = drawn(20_000, 0, sharpness=0.6, shift=torch.tensor([0.5, 0.0, -0.5, 0.2]))
    found = calibrated(logits, labels)
    assert torch.allclose(found.sum(dim=1), torch.ones(len(labels)))
    assert (found - truth).abs().mean() < 0.01
    assert (torch.softmax(logits, dim=1) - truth).abs().mean() > 0.05


def test_many_logits_are_not_all_fitted_to(monkeypatch):
    monkeypatch.setattr(expected_gain, "FITTED", 20_000)
    logits, labels, truth = drawn(20_000, 0, sharpness=0.6)
    found = calibrated(logits, labels)
    assert found.shape == truth.shape
    assert (found - truth).abs().mean() < 0.02


def test_what_is_expected_is_nearer_to_the_truth_than_what_few_labels_show():
    """The true gain of an answer is its probability; over 40 sets of 300 images each."""
    errors = []
    for seed in range(40):
        logits, labels, truth = drawn(300, seed)
        answers = [(logits + shift).argmax(dim=1) for shift in SHIFTS]
        held = torch.stack([truth.gather(1, given[:, None]).mean() for given in answers])
        true = (held - held[0]).numpy()
        right = torch.stack([(given == labels).double().mean() for given in answers])
        shown = (right - right[0]).numpy()
        gains = expected_gains(answers, calibrated(logits, labels), labels)
        shrunk = gains.shrunk(shown, np.arange(4))
        errors.append([abs(shown - true)[1:].mean(), abs(shrunk - true)[1:].mean()])
    labels_alone, both = np.mean(errors, axis=0)
    assert both < 0.75 * labels_alone


def test_labels_that_contradict_the_probabilities_are_believed():
    gains = ExpectedGains(np.array([0.0, -0.01, -0.02]), np.array([0.0, 0.002, 0.002]))
    shown = np.array([0.0, 0.02, 0.03])
    assert gains.shrunk(shown, np.arange(3)) == pytest.approx(shown, abs=1e-3)


def test_labels_that_agree_leave_the_expectation():
    gains = ExpectedGains(np.array([0.0, -0.01, -0.02]), np.array([0.0, 0.005, 0.005]))
    found = gains.shrunk(np.array([0.0, -0.008, -0.023]), np.array([0, 1, 2]))
    assert found.tolist() == [0.0, -0.01, -0.02]
    assert gains.shrunk(np.zeros(1), np.array([0])).tolist() == [0.0]  # nothing moves


def test_an_answer_that_is_not_modelled_is_expected_to_be_wrong():
    logits, labels, _ = drawn(200, 1)
    best = logits.argmax(dim=1)
    gains = expected_gains([best, torch.full_like(best, -1)], calibrated(logits, labels), labels)
    assert gains.expected[1] < -0.3
    assert gains.error[0] == 0
