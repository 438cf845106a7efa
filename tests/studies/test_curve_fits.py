import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hessian_surgery.studies.curve_fits import fit_line, fit_offset_power, fit_power_law

X = np.geomspace(5e-4, 5.5e-2, 38)


@given(c=st.floats(0, 0.1), b=st.floats(0.1, 10), d=st.floats(0.3, 3))
def test_known_curves_come_back(c, b, d):
    fit = fit_offset_power(X, c + b * X**d)
    found = fit.curve
    assert fit.failure is None
    assert found.exponent == pytest.approx(d, rel=1e-3)
    assert found.intercept == pytest.approx(c, abs=1e-3 * b * X.max() ** d)
    assert found.slope == pytest.approx(b, rel=2e-2)
    assert found.r_squared > 1 - 1e-6


@given(b=st.floats(0.1, 10), d=st.floats(0.1, 3))
def test_power_laws_come_back(b, d):
    found = fit_power_law(X, b * X**d).curve
    assert (found.slope, found.exponent) == pytest.approx((b, d))
    assert found.r_squared == pytest.approx(1)
    assert found.r_squared_log == pytest.approx(1)


@given(seed=st.integers(0, 10**6), c=st.floats(-1, 1), b=st.floats(-5, 5))
def test_lines_are_least_squares(seed, c, b):
    y = c + b * X + 0.01 * np.random.default_rng(seed).normal(size=len(X))
    slope, intercept = np.polyfit(X, y, 1)
    found = fit_line(X, y).curve
    assert (found.intercept, found.slope) == pytest.approx((intercept, slope), rel=1e-6, abs=1e-9)
    through = fit_line(X, y, through_zero=True).curve
    assert through.intercept == 0
    assert through.slope == pytest.approx(X @ y / (X @ X))
    assert found.r_squared == pytest.approx(np.corrcoef(found(X), y)[0, 1] ** 2, abs=1e-6)


def test_an_offset_looks_like_a_smaller_exponent():
    """As in the paper's figure: a power law through c + b x has an exponent well below 1."""
    y = 2.5e-3 + 0.94 * X**1.08
    law = fit_power_law(X, y).curve
    offset = fit_offset_power(X, y).curve
    assert law.exponent < 0.8
    assert offset.exponent == pytest.approx(1.08, abs=0.01)
    assert offset.r_squared > law.r_squared


@pytest.mark.parametrize("fit", [fit_line, fit_power_law, fit_offset_power])
@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        ([], [], "too few"),
        ([1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0], "too few"),
        ([1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 2.0, 2.0], "all values are the same"),
        ([1.0, 2.0, 3.0, np.inf], [1.0, 2.0, 3.0, 4.0], "not finite"),
    ],
)
def test_a_fit_that_fails_says_why(fit, x, y, reason):
    answer = fit(np.array(x), np.array(y))
    assert answer.curve is None
    assert reason in answer.failure


@pytest.mark.parametrize(
    ("y", "reason"), [(1 / X, "do not grow"), (1 - X, "do not grow"), (np.eye(len(X))[-1], "no exponent between")]
)
def test_a_falling_or_jumping_error_has_no_growing_power(y, reason):
    answer = fit_offset_power(X, y)
    assert answer.curve is None
    assert reason in answer.failure


def test_points_without_a_logarithm_are_left_out():
    x = np.append(X, [0.0, 0.01])
    y = np.append(3 * X**0.5, [0.0, 0.0])
    assert fit_power_law(x, y).curve.exponent == pytest.approx(0.5)
    assert fit_offset_power(np.append(X, 0.0), np.append(X, 9.0)).curve.exponent == pytest.approx(1, abs=1e-3)
