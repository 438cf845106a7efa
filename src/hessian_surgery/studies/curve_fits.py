"""Fits of curves y = c + b xᵈ to measured points; a fit that fails says why."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar, nnls

from hessian_surgery.types import Array

# An exponent outside this range means that the points do not determine one.
EXPONENTS = (0.05, 6.0)


@dataclass(frozen=True)
class Curve:
    """y = intercept + slope · x^exponent, and how well it fits.

    Attributes:
        intercept: c.
        slope: b.
        exponent: d.
        r_squared: 1 − Σ(y − ŷ)² / Σ(y − ȳ)².
        r_squared_log: the same for log y and log ŷ; None if a value is not positive.
    """

    intercept: float
    slope: float
    exponent: float
    r_squared: float
    r_squared_log: float | None

    def __call__(self, x: Array) -> Array:
        """ŷ at x."""
        return self.intercept + self.slope * x**self.exponent

    def __str__(self) -> str:
        intercept = f"{self.intercept:.2g} + " if self.intercept else ""
        power = "" if self.exponent == 1 else f"^{self.exponent:.2f}"
        return f"{intercept}{self.slope:.2g} x{power} (R² {self.r_squared:.3f})"


@dataclass(frozen=True)
class Fit:
    """A curve, or the reason why there is none."""

    curve: Curve | None
    failure: str | None = None


def fit_line(x: Array, y: Array, *, through_zero: bool = False) -> Fit:
    """Fit c + b x by least squares, or b x if the line goes through zero."""
    failure = _why_not(x, y, unknowns=1 if through_zero else 2)
    if failure:
        return Fit(None, failure)
    columns = np.stack([np.zeros_like(x) if through_zero else np.ones_like(x), x], axis=1)
    (intercept, slope), *_ = np.linalg.lstsq(columns, y)
    return _make_fit(x, y, float(intercept), float(slope), 1.0)


def fit_power_law(x: Array, y: Array) -> Fit:
    """Fit log b + d log x to log y by least squares.

    Points at which x or y is not positive are left out.
    """
    shown = (x > 0) & (y > 0)
    x, y = x[shown], y[shown]
    failure = _why_not(x, y, unknowns=2)
    if failure:
        return Fit(None, failure)
    exponent, offset = np.polyfit(np.log(x), np.log(y), 1)
    return _make_fit(x, y, 0.0, float(np.exp(offset)), float(exponent))


def fit_offset_power(x: Array, y: Array) -> Fit:
    """Fit c + b xᵈ to y by least squares with c, b ≥ 0.

    Points at which x is not positive are left out. For a given d, the best c and b solve a linear
    problem. So the search is over d alone: first on a grid, then around the grid's best value.
    """
    shown = x > 0
    x, y = x[shown], y[shown]
    failure = _why_not(x, y, unknowns=3)
    if failure:
        return Fit(None, failure)

    # x is scaled to keep xᵈ near 1.
    def solve(exponent: float) -> tuple[Array, float]:
        return nnls(np.stack([np.ones_like(x), (x / x.max()) ** exponent], axis=1), y)

    grid = np.geomspace(*EXPONENTS, 60)
    best = int(np.argmin([solve(exponent)[1] for exponent in grid]))
    if solve(grid[best])[0][1] == 0:
        return Fit(None, "the values do not grow")
    if best in (0, len(grid) - 1):
        return Fit(None, f"no exponent between {EXPONENTS[0]:g} and {EXPONENTS[1]:g} fits best")
    neighbours = grid[[best - 1, best + 1]]
    exponent = float(minimize_scalar(lambda d: solve(d)[1], bounds=neighbours, method="bounded").x)
    (intercept, slope), _ = solve(exponent)
    return _make_fit(x, y, float(intercept), float(slope / x.max() ** exponent), exponent)


def _why_not(x: Array, y: Array, unknowns: int) -> str | None:
    """Say why points cannot be fitted; None if they can."""
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return "a value is not finite"
    if len(np.unique(x)) <= unknowns:
        return f"{len(np.unique(x))} different values of x are too few for {unknowns} unknowns"
    return "all values are the same" if np.ptp(y) == 0 else None


def _make_fit(x: Array, y: Array, intercept: float, slope: float, exponent: float) -> Fit:
    fitted = intercept + slope * x**exponent
    positive = (y > 0).all() and (fitted > 0).all()
    in_logs = _r_squared(np.log(y), np.log(fitted)) if positive else None
    return Fit(Curve(intercept, slope, exponent, _r_squared(y, fitted), in_logs))


def _r_squared(y: Array, fitted: Array) -> float:
    return float(1 - np.square(y - fitted).sum() / np.square(y - y.mean()).sum())
