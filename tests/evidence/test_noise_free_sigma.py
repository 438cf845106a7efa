import numpy as np
import pytest
from benchmarks.coverage import CASES, Case, draw_kinds, draw_profile, simulate

from hessian_surgery.evidence.noise_free_sigma import corrected_sigma, resampled_sigma, sigma_change
from hessian_surgery.evidence.resampled_pairs import resample_pairs

RUNS = 300


def test_corrected_sigma_is_the_true_one_on_average():
    rng = np.random.default_rng(0)
    truth = np.linspace(0.6, 0.95, 10)
    images = 60
    draws = rng.binomial(images, truth, size=(3000, 10)) / images
    corrected = np.mean(corrected_sigma(draws, np.full(10, images)) ** 2)
    assert np.sqrt(corrected) == pytest.approx(truth.std(), rel=0.01)
    assert corrected_sigma(np.array([0.8, 0.81]), np.array([50.0, 50.0])) == 0


def test_resamples_spread_as_measurements_do():
    """Their σ without noise has the mean and the spread that new images would give it."""
    rng = np.random.default_rng(0)
    truth = np.linspace(0.5, 0.9, 40)
    count = np.full(40, 60.0)
    again = corrected_sigma(rng.binomial(60, truth, size=(4000, 40)) / 60, count)
    found = []
    for _ in range(60):
        measured = rng.binomial(60, truth) / 60
        drawn = resampled_sigma(rng.binomial(60, measured, size=(500, 40)) / 60, measured, count, count)
        found.append((drawn.mean() - corrected_sigma(measured, count), drawn.std()))
    shift, spread = np.mean(found, axis=0)
    assert shift == pytest.approx(0, abs=0.001)
    assert spread == pytest.approx(again.std(), rel=0.1)


@pytest.mark.parametrize("case", CASES[:4], ids=str)
def test_the_interval_of_a_change_of_sigma_holds_the_truth(case):
    found = simulate(case, RUNS, 200, seed=1)
    error = np.sqrt(0.95 * 0.05 / RUNS)
    assert 0.92 - 2 * error <= found["sigma"]["coverage"] <= 0.98 + 2 * error


def test_the_interval_holds_the_truth_of_many_classes():
    """Where σ as measured changes too little: its interval hardly ever holds the truth."""
    found = simulate(Case((50,) * 100, 0.6, 0.15, 0.6), 60, 150, seed=1)
    assert found["sigma"]["coverage"] >= 0.88
    assert found["raw sigma"]["coverage"] < 0.4
    assert abs(found["sigma"]["bias"]) < 0.25 * abs(found["raw sigma"]["bias"])


@pytest.mark.parametrize("sigma", [0.06, 0.0])
def test_chance_alone_seldom_lowers_sigma(sigma):
    found = simulate(Case((100,) * 10, 0.87, sigma, 1.0), RUNS, 200, seed=1)
    assert found["sigma"]["gain"] <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / RUNS)


def test_classes_of_one_image_and_equal_classes_have_an_interval():
    draw = np.random.default_rng(0)
    case = Case((1, 1, 40), 0.6, 0.1, 1.0)
    before, after = draw_profile(case, draw)
    for kinds in (draw_kinds(case, before, after, draw), np.array([[9.0, 1, 0, 0], [9, 0, 1, 0]])):
        found = sigma_change(resample_pairs(kinds, draw))
        assert np.isfinite([found.difference, *found.interval]).all()
