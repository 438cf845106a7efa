"""The computations of docs/explanation/checked-claims.md, in float64."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hessian_surgery as hs
from hessian_surgery.evidence.effective_rank import effective_rank, entangled_pairs
from hessian_surgery.evidence.metrics import sigma
from hessian_surgery.paper.amplitude import AdamControl, Signal, start_control

# Nine classes at 90 % and one at 80 %: strong ones may lose 0.01, which is what the mean asks of
# them.
ACCURACY = np.array([0.9] * 9 + [0.8])
NEEDED = ACCURACY.mean() - ACCURACY
ROLLBACK = Signal(accepted=False, sigma_before=0.06, sigma_after=0.06, max_drop=0.08)
GAIN = Signal(accepted=True, sigma_before=0.06, sigma_after=0.05, max_drop=0.0)
STALL = Signal(accepted=True, sigma_before=0.06, sigma_after=0.06, max_drop=0.0)


@pytest.mark.parametrize("exponent", [0.5, 1, 2])
def test_effective_rank_one_can_take_all_of_sigma(exponent):
    """One spike along the change that is needed, under the paper's own protection at 0.85."""
    matrix = NEEDED[None] / 0.02
    floor = np.where(ACCURACY > 0.85, -0.01, -np.inf)
    step = hs.plan(matrix, ACCURACY, 0.02, exponent, floor=floor)
    assert effective_rank(matrix) == pytest.approx(1)
    assert sigma(ACCURACY) == pytest.approx(0.03)
    assert sigma(ACCURACY + step.predicted) < 1e-6


def test_the_largest_effective_rank_can_take_none():
    """Nine equal singular values for ten classes, across the change that is needed."""
    rows = np.linalg.svd(NEEDED[None])[2][1:]
    assert rows @ NEEDED == pytest.approx(np.zeros(9), abs=1e-15)
    assert effective_rank(rows) == pytest.approx(9)
    draw = np.random.default_rng(0)
    for length in (0.001, 0.02, 0.5):
        for _ in range(50):
            alpha = draw.normal(size=9)
            change = rows.T @ (length * alpha / np.linalg.norm(alpha))
            assert sigma(ACCURACY + change) >= sigma(ACCURACY) - 1e-15
        step = hs.plan(rows, ACCURACY, length, 2.0, floor=np.full(10, -np.inf))
        assert sigma(ACCURACY + step.predicted) >= sigma(ACCURACY) - 1e-12


def test_a_useless_spike_lowers_the_rank_and_changes_no_plan():
    """It moves accuracy from one class to another that errs as much, ever more strongly."""
    draw = np.random.default_rng(1)
    accuracy = np.array([0.6, 0.6, 0.7, 0.8, 0.9, 0.95])
    useful = draw.normal(size=(3, 6))
    useful[:, :2] = useful[:, :1]  # the two classes respond alike to the other spikes
    alone = hs.plan(useful, accuracy, 0.02, 2.0)
    ranks = []
    for strength in (1.0, 10.0, 1000.0):
        useless = strength * np.array([[1.0, -1.0, 0, 0, 0, 0]])
        both = np.vstack([useless, useful])
        found = hs.plan(both, accuracy, 0.02, 2.0)
        assert found.alpha[0] == pytest.approx(0, abs=1e-7)
        assert found.objective == pytest.approx(alone.objective, rel=1e-6)
        assert sigma(accuracy + found.predicted) == pytest.approx(sigma(accuracy + alone.predicted), abs=1e-5)
        ranks.append(effective_rank(both))
    assert ranks[0] > 2 > 1.001 > ranks[-1]


def test_the_rank_knows_no_scale():
    draw = np.random.default_rng(2)
    matrix, accuracy = draw.normal(size=(9, 10)), draw.uniform(0.6, 0.95, 10)
    free = np.full(10, -np.inf)
    large, small = (hs.plan(scale * matrix, accuracy, 0.02, 2.0, floor=free) for scale in (1, 1e-3))
    assert effective_rank(matrix) == pytest.approx(effective_rank(1e-3 * matrix))
    assert small.objective == pytest.approx(1e-3 * large.objective, rel=1e-4)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 9), st.sampled_from([0.001, 0.02, 0.3]))
def test_what_bounds_a_step(seed, spikes, length):
    """σ falls by at most b ‖S u‖ / √C, with u the unit vector of a − mean(a); nearly reached."""
    draw = np.random.default_rng(seed)
    accuracy = draw.uniform(0.3, 1.0, 10)
    matrix = draw.normal(size=(spikes, 10))
    centred = accuracy - accuracy.mean()
    unit = centred / np.linalg.norm(centred)
    most = length * np.linalg.norm(matrix @ unit) / math.sqrt(10)
    alpha = draw.normal(size=spikes)
    alpha *= length * draw.uniform() / np.linalg.norm(alpha)
    assert sigma(accuracy + matrix.T @ alpha) >= sigma(accuracy) - most - 1e-12
    short = -1e-6 * matrix @ unit / np.linalg.norm(matrix @ unit)
    fall = sigma(accuracy) - sigma(accuracy + matrix.T @ short)
    assert fall == pytest.approx(1e-6 * most / length, rel=1e-2, abs=1e-12)


def test_a_box_is_never_wider_than_the_ball_along_one_spike():
    """Appendix B's eigenvalues, 600 to 20: only the last half-width is the ball's."""
    eigenvalues = np.geomspace(600, 20, 7)
    accuracy = np.full(7, 0.5)
    for i in range(7):
        matrix = np.zeros((7, 7))
        matrix[i, 0] = 1.0
        ball, box = (
            abs(hs.plan(matrix, accuracy, 0.02, bound=bound, eigenvalues=eigenvalues).alpha[i])
            for bound in ("ball", "box")
        )
        assert ball == pytest.approx(0.02)
        assert box == pytest.approx(0.02 * math.sqrt(20 / eigenvalues[i]))
        assert box <= ball * (1 + 1e-9)
        assert box**2 * eigenvalues[i] == pytest.approx(0.02**2 * 20)


def test_a_box_allows_longer_steps_along_several_spikes():
    eigenvalues = np.geomspace(600, 20, 7)
    accuracy = np.full(7, 0.5)
    corner = hs.plan(np.eye(7), accuracy, 0.02, bound="box", eigenvalues=eigenvalues).alpha
    assert np.linalg.norm(corner) == pytest.approx(0.02 * math.sqrt((20 / eigenvalues).sum()), rel=1e-6)
    assert 1.4 < np.linalg.norm(corner) / 0.02 < 1.6


def test_adams_limit_has_levels_and_no_memory():
    """T = 1 gives β₁ = β₂ = 0: the amplitude depends on the sign of the last signal alone."""
    control = start_control("adam", 0.02, 1, base_sigma=0.06)
    assert isinstance(control, AdamControl)
    lowest = 0.001
    levels = {-1: ROLLBACK, 0: STALL, 1: GAIN}
    for sign, signal in levels.items():
        expected = lowest + (1 + math.tanh(5 * sign)) / 2 * (0.02 - lowest)
        after_others = control.update(GAIN).update(ROLLBACK).update(signal)
        assert control.update(signal).value == pytest.approx(expected, rel=1e-4)
        assert after_others.value == pytest.approx(control.update(signal).value, rel=1e-12)
    adam, gamma = control, start_control("gamma", 0.02, 10, base_sigma=0.06)
    values = []
    for _ in range(4):
        adam, gamma = adam.update(ROLLBACK), gamma.update(ROLLBACK)
        values.append((adam.value, gamma.value))
    assert [a for a, _ in values] == pytest.approx([values[0][0]] * 4)
    assert [g for _, g in values] == pytest.approx([0.02 * 0.7**k for k in (1, 2, 3, 4)])


def test_entangled_classes_can_both_gain():
    """Every spike moves them in opposite ways, and two spikes together lift both."""
    matrix = np.array([[2.0, -1.0], [1.0, -2.0]])
    assert entangled_pairs(matrix, ("mel", "nv")) == [("mel", "nv")]
    step = hs.plan(matrix, np.array([0.5, 0.5]), 0.02, 0.0, floor=np.zeros(2))
    assert step.predicted == pytest.approx([0.02 / math.sqrt(2)] * 2, rel=1e-6)
    collinear = np.array([[2.0, -1.0], [1.0, -0.5]])
    step = hs.plan(collinear, np.array([0.5, 0.5]), 0.02, 0.0, floor=np.zeros(2))
    assert step.predicted == pytest.approx([0, 0], abs=1e-6)
