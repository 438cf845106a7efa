import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from report_checks import check_report

import hessian_surgery as hs
from hessian_surgery.evidence.effective_rank import effective_rank
from hessian_surgery.paper.sensitivity import sensitivity_from_answers
from hessian_surgery.studies import effective_rank as study
from hessian_surgery.studies.effective_rank import effective_rank_study, effective_ranks, resample, resampled


def study_digits(model, parts, search, **options):
    return effective_rank_study(model, parts.training, parts.calibration, search, **options)


def test_digits(trained, digits_parts, tmp_path):
    before = {name: t.clone() for name, t in trained.state_dict().items()}
    seen = []
    search = hs.SpikeSearch(hessian_samples=64)
    result = study_digits(trained, digits_parts, search, epsilon=0.05, progress=lambda *told: seen.append(told))
    assert all(torch.equal(t, before[name]) for name, t in trained.state_dict().items())
    assert seen == sorted(seen)
    assert seen[-1] == (1000, 1000)

    spectrum = hs.lanczos(hs.Hessian(trained, hs.hessian_batch(digits_parts.training, 64)), 9)
    matrix = hs.sensitivity(trained, spectrum, digits_parts.calibration, 0.05)
    assert result.sensitivity == matrix.tolist()
    values = np.linalg.svd(matrix, compute_uv=False)
    rank = result.effective_rank
    assert rank.estimate == result.structure.effective_rank == effective_rank(matrix)
    assert result.flatness.estimate == pytest.approx(values[0] / values[1])
    assert result.leading_energy == pytest.approx((values[:2] ** 2).sum() / (values**2).sum())
    assert len(result.resampled_ranks) == 1000
    assert rank.mean == pytest.approx(np.mean(result.resampled_ranks))
    assert rank.corrected == pytest.approx(2 * rank.estimate - rank.mean)
    assert rank.interval[0] < rank.corrected < rank.interval[1]
    check_report(study, result, tmp_path)


def test_one_spike_has_rank_one_and_no_second_value(trained, digits_parts, tmp_path):
    search = hs.SpikeSearch(spikes=1, hessian_samples=32)
    result = study_digits(trained, digits_parts, search, epsilon=0.1, bootstrap=20)
    assert result.effective_rank.estimate == pytest.approx(1)
    assert result.effective_rank.interval == pytest.approx((1, 1))
    assert result.flatness is None
    check_report(study, result, tmp_path)


def test_a_probe_too_small_to_flip_an_image(trained, digits_parts, tmp_path):
    search = hs.SpikeSearch(spikes=2, hessian_samples=32)
    result = study_digits(trained, digits_parts, search, epsilon=1e-9, bootstrap=20)
    assert result.effective_rank.estimate == result.effective_rank.corrected == 0
    assert result.flatness is None
    assert result.leading_energy is None
    check_report(study, result, tmp_path)


def answers(matrix, images, epsilon, rng, churn=0.003):
    """Answers (2K, N), right or wrong, of `images` images per class, and their labels.

    Each spike flips images at random. The expected S is `matrix`.
    """
    change = 2 * epsilon * matrix
    labels = np.repeat(np.arange(matrix.shape[1]), images)
    chance = rng.random((len(matrix), len(labels)))
    gained = (np.maximum(change, 0) + churn)[:, labels]
    lost = (np.maximum(-change, 0) + churn)[:, labels]
    up = rng.random(chance.shape) < 0.5
    down = up.copy()
    up[chance < gained] = True
    down[chance < gained] = False
    swapped = (chance >= gained) & (chance < gained + lost)
    up[swapped] = False
    down[swapped] = True
    return np.stack([up, down], axis=1).reshape(2 * len(matrix), -1), labels


def known_matrix(values, rng):
    """S (9, 10) with given singular values."""
    left, right = (np.linalg.qr(rng.normal(size=(size, size)))[0] for size in (9, 10))
    return left[:, : len(values)] * values @ right[: len(values)]


def test_resampling_draws_images_again():
    """Mean and spread of the multinomial draws are those of a loop that draws the images."""
    rng = np.random.default_rng(0)
    correct, labels = answers(known_matrix([6.0, 3.0], rng), 40, 0.02, rng, churn=0.05)
    drawn = resample(correct, labels, 10, 0.02, 4000, seed=0)
    by_hand = []
    for _ in range(1500):
        chosen = np.concatenate([rng.choice(np.flatnonzero(labels == j), 40) for j in range(10)])
        by_hand.append(sensitivity_from_answers(correct[:, chosen], labels[chosen], 10, 0.02))
    spread = np.std(by_hand, axis=0)
    assert drawn.std(axis=0) == pytest.approx(spread, rel=0.15, abs=1e-9)
    matrix = sensitivity_from_answers(correct, labels, 10, 0.02)
    assert np.abs(drawn.mean(axis=0) - matrix).max() < 5 * spread.max() / np.sqrt(4000)
    # One image flips along several spikes: the draws keep that.
    covariance = np.cov(drawn[:, :, 0].T) / np.cov(np.array(by_hand)[:, :, 0].T)
    assert np.diagonal(covariance) == pytest.approx(np.ones(9), rel=0.25)


@pytest.mark.parametrize("values", [[6.0, 5.0], [6.4, 5.2, 4.0, 2.5, 1.5, 1.0, 0.6, 0.4, 0.2], [3.0] * 9])
def test_the_mirrored_interval_covers_the_truth_more_often_than_percentiles(values):
    """Two leading values, values like the paper's, all alike: 40 sets of 1,000 images a class."""
    rng = np.random.default_rng(1)
    matrix = known_matrix(values, rng)
    truth = effective_rank(matrix)
    covered = 0
    by_percentiles = 0
    for trial in range(40):
        correct, labels = answers(matrix, 1000, 0.01, rng)
        drawn = np.linalg.svd(resample(correct, labels, 10, 0.01, 200, seed=trial), compute_uv=False)
        estimate = effective_rank(sensitivity_from_answers(correct, labels, 10, 0.01))
        found = resampled(estimate, effective_ranks(drawn), highest=9)
        covered += found.interval[0] <= truth <= found.interval[1]
        by_percentiles += found.percentiles[0] <= truth <= found.percentiles[1]
    assert covered >= 34
    assert by_percentiles <= covered


def test_draws_depend_on_the_seed_alone():
    rng = np.random.default_rng(2)
    correct, labels = answers(known_matrix([4.0], rng), 30, 0.02, rng)
    one, two, other = (resample(correct, labels, 10, 0.02, 5, seed) for seed in (0, 0, 1))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)


@given(arrays(np.float64, (3, 4, 5), elements=st.floats(-5, 5)))
def test_ranks_of_many_are_those_of_each(matrices):
    found = effective_ranks(np.linalg.svd(matrices, compute_uv=False))
    assert found == pytest.approx([effective_rank(matrix) for matrix in matrices])


def test_corrected_values_stay_in_the_possible_range():
    found = resampled(1.2, np.array([1.5, 2.0, 1.6, 1.8]), highest=3)
    assert found.corrected == 1
    assert found.interval[0] == 1
    assert resampled(2.9, np.array([2.0, 2.1]), highest=3).corrected == 3


@pytest.mark.parametrize("option", [{"epsilon": 0.0}, {"bootstrap": 0}])
def test_bad_options_are_named(option, trained, digits_parts):
    name = next(iter(option))
    with pytest.raises(hs.InputError, match=f"{name}: got 0"):
        effective_rank_study(trained, digits_parts.training, digits_parts.calibration, **option)
