import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hessian_surgery.evidence import PairedTests, compare, holm, judge, mcnemar
from hessian_surgery.metrics import class_accuracy


def simulate(seed, before, after, images=200, churn=0.3):
    """Labels and two sets of predictions with given class accuracies, correlated unless all images churn."""
    rng = np.random.default_rng(seed)
    classes = len(before)
    labels = np.repeat(np.arange(classes), images)
    wrong = (labels + 1) % classes
    luck = rng.random(len(labels))
    fresh = np.where(rng.random(len(labels)) < churn, rng.random(len(labels)), luck)
    old = np.where(luck < np.array(before)[labels], labels, wrong)
    new = np.where(fresh < np.array(after)[labels], labels, wrong)
    return torch.tensor(old), torch.tensor(new), torch.tensor(labels)


def names(classes):
    return tuple(str(i) for i in range(classes))


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_the_exact_binomial_test(gained, lost):
    expected = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert mcnemar(gained, lost) == pytest.approx(expected)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])


def test_differences_and_counts():
    before, after, labels = simulate(0, [0.5, 0.9, 0.9], [0.8, 0.9, 0.85])
    tests = compare(before, after, labels, names(3))
    old, new = (class_accuracy(p, labels, 3) for p in (before, after))
    assert tests.sigma.difference == pytest.approx(new.std() - old.std())
    assert tests.accuracy.difference == pytest.approx(new.mean() - old.mean())
    assert tests.worst.difference == pytest.approx(new.min() - old.min())
    for j, test in enumerate(tests.per_class):
        own = labels == j
        gained = int(((before != labels) & (after == labels) & own).sum())
        lost = int(((before == labels) & (after != labels) & own).sum())
        assert (test.gained, test.lost) == (gained, lost)
        assert test.as_dict()["class"] == str(j)
    assert tests.per_class[0].p_holm < 0.001


def test_intervals_agree_with_resampling_images():
    before, after, labels = simulate(1, [0.6, 0.8, 0.9], [0.7, 0.8, 0.85], images=80)
    tests = compare(before, after, labels, names(3))
    rng, draws = np.random.default_rng(3), []
    groups = [np.flatnonzero(labels.numpy() == j) for j in range(3)]
    for _ in range(3000):
        chosen = torch.from_numpy(np.concatenate([rng.choice(group, len(group)) for group in groups]))
        old, new = (class_accuracy(p[chosen], labels[chosen], 3) for p in (before, after))
        draws.append(new.std() - old.std())
    assert tests.sigma.interval == pytest.approx(np.quantile(draws, [0.025, 0.975]), abs=0.006)


def verdict(seed, before, after, **options) -> PairedTests:
    old, new, labels = simulate(seed, before, after, **options)
    return judge(compare(old, new, labels, names(len(before)))).outcome


def test_verdicts():
    assert verdict(0, [0.4, 0.9, 0.9], [0.8, 0.9, 0.9]) == "better"
    assert verdict(0, [0.8, 0.9, 0.9], [0.4, 0.9, 0.9]) == "worse"
    assert verdict(0, [0.8, 0.8, 0.8], [0.6, 0.6, 0.6]) == "worse"
    assert verdict(0, [0.8, 0.9, 0.9], [0.8, 0.9, 0.9]) == "no detectable change"


def test_nothing_is_found_where_nothing_is():
    """200 operations that only reshuffle errors: a finding in at most 5 % plus three standard errors."""
    profile = np.linspace(0.5, 0.95, 10)
    found = [verdict(seed, profile, profile, images=60) != "no detectable change" for seed in range(200)]
    assert np.mean(found) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)


def test_identical_predictions_change_nothing():
    labels = torch.arange(30) % 3
    tests = compare(labels, labels, labels, names(3))
    assert tests.sigma.interval == (0.0, 0.0)
    assert judge(tests).outcome == "no detectable change"
    assert "Keep the original model" in judge(tests).sentence
