"""The plan: coefficients α of the spikes that lift weak classes and protect strong ones (eq. 5)."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from hessian_surgery.errors import InputError
from hessian_surgery.operation.goal import Target
from hessian_surgery.short_repr import short_repr
from hessian_surgery.types import Array

Bound: TypeAlias = Literal["ball", "box"]

# How far below its floor a planned change may end, as a fraction: rounding.
SLACK = 1e-9


@dataclass(frozen=True)
class Plan:
    """A step.

    Attributes:
        alpha: coefficients of the spikes (K,).
        predicted: the change of each class's accuracy (C,) that S predicts, Sᵀα.
        objective: Σ_j w_j (Sᵀα)_j.
        weights: w (C,).

    Example:
        >>> step = hs.plan(np.array([[1.0, -1.0]]), np.array([0.5, 0.9]), budget=0.1)
        >>> bool(step.predicted[0] > 0 > step.predicted[1])
        True
    """

    alpha: Array
    predicted: Array
    objective: float
    weights: Array

    __repr__ = short_repr


def plan(
    sensitivity: Array,
    accuracy: Array,
    budget: float,
    exponent: float = 1.0,
    *,
    floor: Array | None = None,
    bound: Bound = "ball",
    eigenvalues: Array | None = None,
) -> Plan:
    """Solve eq. 5 by sequential least-squares programming (SLSQP).

    Maximise Σ_j w_j (Sᵀα)_j subject to (Sᵀα)_j ≥ floor_j for each class, and to ‖α‖ ≤ budget, or
    |α_i| ≤ budget·√(λ_min/λ_i) for the box.

    Args:
        sensitivity: S (K, C).
        accuracy: class accuracies (C,) that the weights are made from.
        budget: α_max.
        exponent: p of the class-error weights.
        floor: the lowest planned change (C,) of each class, none above 0, −inf for a class that is
            not protected; by default that of `strong_floor`.
        bound: "ball" or "box".
        eigenvalues: λ (K,), for the box.

    Example:
        >>> hs.plan(np.array([[1.0, -1.0]]), np.array([0.5, 0.9]), budget=0.1)
        Plan(alpha=ndarray(1,), predicted=ndarray(2,), objective=..., weights=ndarray(2,))
    """
    _check(sensitivity, accuracy, budget)
    floor = strong_floor(accuracy) if floor is None else floor
    weights = class_weights(accuracy, exponent)
    half_width = _half_widths(len(sensitivity), bound, eigenvalues)
    # Solved for x = α / budget, so that the solver's tolerances mean the same at every amplitude.
    scaled = budget * sensitivity
    x = _solve(scaled @ weights, scaled, floor, half_width)
    alpha = budget * x
    predicted = sensitivity.T @ alpha
    return Plan(alpha, predicted, float(weights @ predicted), weights)


def class_weights(accuracy: Array, exponent: float) -> Array:
    """w_j = e_j^p / Σ_k e_k^p with the class errors e = 1 − accuracy (eq. 6).

    All weights are equal if no class errs.
    """
    error = 1 - accuracy
    if exponent == 0 or not error.any():
        return np.full(len(error), 1 / len(error))
    powered = error**exponent
    return powered / powered.sum()


def error_ratio(accuracy: Array, count: Array) -> float:
    """e_max / e_min, with errors of at least half an image, 1/(2 n_j): a class may have none."""
    error = np.maximum(1 - accuracy, 1 / (2 * count))
    return float(error.max() / error.min())


def recommended_exponent(accuracy: Array, count: Array, target: Target = "sigma") -> float:
    """The p-rule (table 3): concentrate on the weakest class if errors are similar."""
    mild = error_ratio(accuracy, count) < 5
    if target == "sigma":
        return 2.0 if mild else 0.5
    return 1.0 if mild else 0.0


def strong_threshold(accuracy: Array) -> float:
    """The accuracy above which a class is strong in the loop: the mean plus one σ."""
    return float(accuracy.mean() + accuracy.std())


def strong_floor(
    accuracy: Array,
    *,
    reference: Array | None = None,
    threshold: float | None = None,
    allowed_drop: float = 0.01,
) -> Array:
    """The lowest planned change (C,) of each class: the no-degradation rule of eq. 5 as a vector.

    Args:
        accuracy: present class accuracies (C,).
        reference: accuracies (C,) that strength and drops count from; by default the present ones,
            as in the paper. With the starting model's, a class that has lost all it may lose is
            planned to lose nothing more.
        threshold: a class above it is strong; by default `strong_threshold` of the reference.
        allowed_drop: what a strong class may lose against the reference.
    """
    reference = accuracy if reference is None else reference
    threshold = strong_threshold(reference) if threshold is None else threshold
    left = np.maximum(0.0, accuracy - reference + allowed_drop)
    return np.where(reference > threshold, -left, -np.inf)


def _half_widths(spikes: int, bound: Bound, eigenvalues: Array | None) -> Array | None:
    """Half-widths √(λ_min/λ_i) of the box (eq. 11), or None for the ball."""
    if bound == "ball":
        return None
    if eigenvalues is None or len(eigenvalues) != spikes or not (eigenvalues > 0).all():
        raise InputError(f"eigenvalues: got {eigenvalues}; the box needs one positive eigenvalue for each spike")
    return np.sqrt(eigenvalues.min() / eigenvalues)


def _solve(gain: Array, response: Array, floor: Array, half_width: Array | None) -> Array:
    """max gain·x subject to the bound on x (K,) and responseᵀ x ≥ floor."""
    protected = np.isfinite(floor)
    constraints: list[dict[str, Any]] = []
    if protected.any():
        slope = response[:, protected].T
        limit = floor[protected]
        constraints.append({"type": "ineq", "fun": lambda x: slope @ x - limit, "jac": lambda x: slope})
    if half_width is None:
        constraints.append({"type": "ineq", "fun": lambda x: 1 - x @ x, "jac": lambda x: -2 * x})
    bounds = None if half_width is None else [(-width, width) for width in half_width]
    size = np.linalg.norm(gain)
    if size == 0:
        return np.zeros_like(gain)
    direction = gain / size
    best = np.zeros_like(gain)
    # From the middle, and from along the gain in case that stalls: the better feasible end counts.
    for start in (0.0, 0.5):
        found = minimize(
            lambda x: -direction @ x,
            start * direction * (1 if half_width is None else half_width),
            jac=lambda x: -direction,
            method="SLSQP",
            bounds=bounds,
            constraints=constraints,
            options={"maxiter": 500, "ftol": 1e-12},
        )
        x = _feasible(found, response, floor, half_width)
        if direction @ x > direction @ best:
            best = x
    return best


def _feasible(found: OptimizeResult, response: Array, floor: Array, half_width: Array | None) -> Array:
    """The solver's point, pulled towards 0 (always feasible) as far as it oversteps."""
    x = np.asarray(found.x, dtype=np.float64)
    if not np.isfinite(x).all():
        return np.zeros_like(x)
    reach = np.linalg.norm(x) if half_width is None else np.max(np.abs(x) / half_width)
    change = response.T @ x
    limit = floor - SLACK
    overstep = np.max(change / limit, initial=1.0, where=change < limit)
    return x / max(1.0, float(reach), float(overstep))


def _check(sensitivity: Array, accuracy: Array, budget: float) -> None:
    if sensitivity.ndim != 2 or sensitivity.shape[1] != len(accuracy):
        raise InputError(f"sensitivity: shape {sensitivity.shape} does not go with {len(accuracy)} class accuracies")
    if budget <= 0:
        raise InputError(f"budget: got {budget}; the amplitude must be positive")
