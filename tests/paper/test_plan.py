import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import hessian_surgery as hs
from hessian_surgery.paper.plan import (
    class_weights,
    error_ratio,
    recommended_exponent,
    strong_floor,
    strong_threshold,
)

TABLE2 = np.array([89.2, 90.7, 81.7, 68.6, 85.2, 69.0, 90.6, 90.5, 93.1, 89.5]) / 100


def optimum(sensitivity, weights, budget, floor, half_width=None):
    """Eq. 5 by a convex solver, for x = α / budget."""
    x = cp.Variable(len(sensitivity))
    bound = [cp.norm(x) <= 1] if half_width is None else [cp.abs(x) <= half_width]
    protected = np.isfinite(floor)
    if protected.any():
        bound.append(budget * sensitivity.T[protected] @ x >= floor[protected])
    problem = cp.Problem(cp.Maximize(budget * (sensitivity @ weights) @ x), bound)
    return problem.solve(solver=cp.CLARABEL)


problems = st.tuples(st.integers(0, 10**6), st.integers(1, 12), st.integers(2, 12), st.sampled_from([0, 0.5, 1, 2]))


def random_problem(seed, spikes, classes):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(spikes, classes)) * 3, rng.uniform(0.3, 1.0, classes), rng.uniform(1, 500, spikes)


@settings(deadline=None, max_examples=150)
@given(problems, st.sampled_from(["ball", "box"]), st.sampled_from([0.002, 0.02, 0.2]))
def test_slsqp_reaches_the_convex_optimum(problem, bound, budget):
    seed, spikes, classes, exponent = problem
    sensitivity, accuracy, eigenvalues = random_problem(seed, spikes, classes)
    floor = strong_floor(accuracy, threshold=0.7)
    found = hs.plan(sensitivity, accuracy, budget, exponent, floor=floor, bound=bound, eigenvalues=eigenvalues)
    half_width = np.sqrt(eigenvalues.min() / eigenvalues) if bound == "box" else None
    best = optimum(sensitivity, found.weights, budget, floor, half_width)
    assert found.objective == pytest.approx(best, abs=1e-6)
    if bound == "ball":
        assert np.linalg.norm(found.alpha) <= budget * (1 + 1e-9)
    else:
        assert (np.abs(found.alpha) <= budget * half_width * (1 + 1e-9)).all()
    assert (found.predicted >= floor - 1e-8).all()


@settings(deadline=None, max_examples=50)
@given(problems)
def test_a_class_that_may_lose_nothing_is_not_planned_to(problem):
    seed, spikes, classes, exponent = problem
    sensitivity, accuracy, _ = random_problem(seed, spikes, classes)
    floor = np.where(accuracy > 0.8, 0.0, -np.inf)
    found = hs.plan(sensitivity, accuracy, 0.02, exponent, floor=floor)
    assert (found.predicted >= floor - 1e-8).all()
    assert found.objective >= 0
    assert found.objective == pytest.approx(optimum(sensitivity, found.weights, 0.02, floor), abs=1e-6)


def test_plan_without_constraints_is_the_gradient_by_hand():
    found = hs.plan(np.array([[3.0, 0.0], [0.0, 4.0]]), np.array([0.5, 0.5]), 0.1, 1, floor=np.full(2, -np.inf))
    assert found.alpha == pytest.approx([0.06, 0.08], abs=1e-7)
    assert found.predicted == pytest.approx([0.18, 0.32], abs=1e-6)
    assert found.objective == pytest.approx(0.25, abs=1e-7)


def test_nothing_to_gain_means_no_step():
    assert not hs.plan(np.zeros((3, 2)), np.array([0.5, 0.9]), 0.02).alpha.any()


def test_weights_by_hand():
    accuracy = np.array([0.5, 0.75, 0.75])
    assert class_weights(accuracy, 0) == pytest.approx([1 / 3] * 3)
    assert class_weights(accuracy, 1) == pytest.approx([0.5, 0.25, 0.25])
    assert class_weights(accuracy, 2) == pytest.approx([4 / 6, 1 / 6, 1 / 6])
    assert class_weights(accuracy, 0.5) == pytest.approx(np.array([np.sqrt(2), 1, 1]) / (2 + np.sqrt(2)))
    assert class_weights(np.ones(2), 2) == pytest.approx([0.5, 0.5])


@given(arrays(np.float64, 5, elements=st.floats(0, 1)), st.floats(0, 4))
def test_weights_sum_to_one_and_follow_the_error(accuracy, exponent):
    weights = class_weights(accuracy, exponent)
    assert weights.sum() == pytest.approx(1)
    order = np.argsort(accuracy)
    assert (np.diff(weights[order]) <= 1e-12).all()


def test_p_rule():
    """Table 3 on the paper's own two cases, and on a class without errors."""
    images = np.full(10, 500.0)
    assert error_ratio(TABLE2, images) == pytest.approx(31.4 / 6.9)
    assert recommended_exponent(TABLE2, images, "sigma") == 2
    assert recommended_exponent(TABLE2, images, "worst") == 1
    isic = np.array([0.472, 0.859, 0.744, 0.262, 0.365, 0.333, 0.105, 0.319])
    assert error_ratio(isic, np.full(8, 100.0)) == pytest.approx(6.35, abs=0.01)
    assert recommended_exponent(isic, np.full(8, 100.0), "sigma") == 0.5
    assert recommended_exponent(isic, np.full(8, 100.0), "worst") == 0
    assert error_ratio(np.array([1.0, 0.9]), np.array([50.0, 50.0])) == pytest.approx(10)


def test_strong_classes():
    accuracy = np.array([0.5, 0.9, 0.95])
    assert strong_floor(accuracy, threshold=0.85).tolist() == [-np.inf, -0.01, -0.01]
    assert strong_threshold(accuracy) == pytest.approx(accuracy.mean() + accuracy.std())
    cumulative = strong_floor(np.array([0.6, 0.895, 0.90]), reference=accuracy, threshold=0.85)
    assert cumulative == pytest.approx([-np.inf, -0.005, 0.0])
    gained = strong_floor(np.array([0.6, 0.93, 0.95]), reference=accuracy, threshold=0.85)
    assert gained == pytest.approx([-np.inf, -0.04, -0.01])


def test_bad_plans_are_named():
    with pytest.raises(hs.InputError, match="does not go with 3 class accuracies"):
        hs.plan(np.ones((2, 4)), np.ones(3), 0.02)
    with pytest.raises(hs.InputError, match="budget: got 0"):
        hs.plan(np.ones((2, 3)), np.ones(3), 0)
    with pytest.raises(hs.InputError, match="one positive eigenvalue for each spike"):
        hs.plan(np.ones((2, 3)), np.ones(3), 0.1, bound="box", eigenvalues=np.array([1.0, -1.0]))
