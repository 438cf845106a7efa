import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hessian_surgery.evidence.class_noise import between_variance, class_noise, no_noise, sampling_variance


def test_equal_accuracies_are_all_that_is_known():
    found = class_noise(np.full(4, 0.8), np.full(4, 50))
    assert found.expected.tolist() == pytest.approx([0] * 4)
    assert found.spread.tolist() == [0] * 4
    assert found.unseen == 0


def test_a_small_difference_is_all_noise():
    per_class = np.array([0.78, 0.80, 0.82])
    found = class_noise(per_class, np.full(3, 50))
    assert found.expected.tolist() == pytest.approx([-0.02, 0, 0.02], abs=0.001)
    assert found.unseen == 0


def test_a_large_difference_is_hardly_noise():
    """The variance to expect is E[a (1 − a)] / n, with a (1 − a) = 0.21, 0.24 and 0.09."""
    per_class = np.array([0.3, 0.6, 0.9])
    found = class_noise(per_class, np.full(3, 1000))
    assert np.abs(found.expected).max() < 0.001
    assert found.spread == pytest.approx([np.sqrt(0.18 / 1000)] * 3, rel=0.1)
    assert found.error == pytest.approx(np.sqrt(sampling_variance(per_class, np.full(3, 1000))))


def test_the_variance_between_classes_solves_its_equation():
    per_class = np.array([0.5, 0.7, 0.75, 0.95])
    count = np.array([20, 60, 35, 90])
    between = between_variance(per_class, count)
    rough = count @ per_class / 205
    variance = ((rough * (1 - rough) - between) * 205 + 1) / 207 / count
    weight = 1 / (between + variance)
    mean = weight @ per_class / weight.sum()
    assert between > 0
    assert weight @ (per_class - mean) ** 2 == pytest.approx(3)


def test_a_skewed_distribution_is_seen_whole():
    """Most classes have hardly an error and a few have many: V is the variance of the truth."""
    draw = np.random.default_rng(1)
    truth = np.where(draw.random(1000) < 0.15, 0.6, 0.96)
    found = [between_variance(draw.binomial(20, truth) / 20, np.full(1000, 20)) for _ in range(20)]
    assert np.mean(found) == pytest.approx(truth.var(), rel=0.03)


def test_a_class_of_few_images_is_believed_less():
    found = class_noise(np.array([0.5, 0.5, 0.9, 0.9]), np.array([10, 500, 500, 500]))
    assert found.expected[0] < found.expected[1] < 0
    assert found.spread[0] > found.spread[1]


@given(
    per_class=arrays(np.float64, 5, elements=st.floats(0, 1)),
    count=arrays(np.int64, 5, elements=st.integers(1, 2000)),
)
@settings(max_examples=100, deadline=None)
def test_noise_is_between_nothing_and_the_whole_distance(per_class, count):
    found = class_noise(per_class, count)
    likely = per_class - found.expected
    assert np.isfinite(likely).all()
    assert likely.min() >= per_class.min() - 1e-9
    assert likely.max() <= per_class.max() + 1e-9
    assert (found.spread**2 <= 0.26 / count).all()


def test_what_is_subtracted_comes_nearer_to_the_truth():
    """Simulated: accuracies without their expected noise miss the truth by less, and by what is
    said to be unknown.
    """
    draw = np.random.default_rng(0)
    raw, likely, spread = [], [], []
    for _ in range(400):
        truth = np.clip(draw.normal(0.85, 0.05, 10), 0, 1)
        seen = draw.binomial(60, truth) / 60
        found = class_noise(seen, np.full(10, 60))
        raw.append(seen - truth)
        likely.append(seen - found.expected - truth)
        spread.append(found.spread)
    assert np.square(likely).mean() < 0.8 * np.square(raw).mean()
    assert np.square(likely).mean() == pytest.approx(np.square(spread).mean(), rel=0.5)


def test_no_noise_is_nothing():
    assert no_noise(3).expected.tolist() == no_noise(3).spread.tolist() == [0, 0, 0]
