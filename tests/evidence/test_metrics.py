import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from hessian_surgery.evidence.effective_rank import effective_rank
from hessian_surgery.evidence.metrics import (
    class_accuracy,
    compute_metrics,
    sampling_sigma,
    sigma,
    wilson_ends,
    wilson_interval,
)


def test_measures_by_hand():
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2, 2])
    predictions = torch.tensor([0, 0, 0, 1, 1, 0, 2, 2, 2, 2])
    metrics = compute_metrics(predictions, labels, 3)
    assert metrics.per_class == [0.75, 0.5, 1.0]
    assert metrics.count == [4, 2, 4]
    assert metrics.accuracy == pytest.approx(0.8)
    assert metrics.balanced_accuracy == pytest.approx(0.75)
    assert metrics.sigma == pytest.approx(np.sqrt((0.25**2 + 0.25**2) / 3))
    assert metrics.worst == 0.5


def test_sigma_is_the_papers():
    """Table 2's accuracies give the text's σ of 8.57 pp; division by C − 1 would give 9.03."""
    table2 = np.array([89.2, 90.7, 81.7, 68.6, 85.2, 69.0, 90.6, 90.5, 93.1, 89.5]) / 100
    assert sigma(table2) == pytest.approx(0.0857, abs=2e-4)


def test_a_class_without_images_has_no_accuracy():
    accuracy = class_accuracy(torch.tensor([0, 0]), torch.tensor([0, 0]), 2)
    assert accuracy[0] == 1
    assert np.isnan(accuracy[1])


@given(n=st.integers(1, 400), data=st.data())
def test_wilson_interval_is_scipys(n, data):
    k = data.draw(st.integers(0, n))
    confidence = data.draw(st.sampled_from([0.9, 0.95]))
    reference = stats.binomtest(k, n).proportion_ci(confidence, method="wilson")
    assert wilson_interval(k, n, confidence) == pytest.approx((reference.low, reference.high), abs=1e-12)


def test_many_wilson_intervals_at_once():
    low, high = wilson_ends(np.array([0, 5, 9, 0]), np.array([9, 9, 9, 0]))
    assert [(low[i], high[i]) for i in range(3)] == [wilson_interval(k, 9) for k in (0, 5, 9)]
    assert (low[0], high[2]) == (0.0, 1.0)
    assert np.isnan(high[3])


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_sampling_sigma_is_what_resampling_gives(classes):
    rng = np.random.default_rng(0)
    p, n = 0.8, 50
    draws = rng.binomial(n, p, size=(20000, classes)) / n
    expected = np.sqrt((draws.std(axis=1) ** 2).mean())
    assert sampling_sigma(np.full(classes, p), np.full(classes, n)) == pytest.approx(expected, rel=0.01)


def test_effective_rank_of_known_matrices():
    assert effective_rank(np.eye(5)) == pytest.approx(5)
    assert effective_rank(np.ones((4, 7))) == pytest.approx(1)
    assert effective_rank(np.zeros((2, 3))) == 0
    energy = np.array([6.41, 5.22, 3.99]) ** 2
    share = energy / energy.sum()
    assert effective_rank(np.diag([6.41, 5.22, 3.99])) == pytest.approx(np.exp(-(share * np.log(share)).sum()))


@given(arrays(np.float64, (4, 6), elements=st.floats(-5, 5)))
def test_effective_rank_is_between_one_and_the_rank(matrix):
    if np.abs(matrix).max() > 1e-3:
        assert 1 - 1e-9 <= effective_rank(matrix) <= np.linalg.matrix_rank(matrix) + 1e-6
        assert effective_rank(3 * matrix) == pytest.approx(effective_rank(matrix))
