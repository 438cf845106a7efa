"""Rank correlations over models: what is known before an operation, and what it gains."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from hessian_surgery.errors import InputError
from hessian_surgery.evidence.significance import holm
from hessian_surgery.seeding import numpy_generator
from hessian_surgery.studies.predictors import GAINS, METHOD, PREDICTORS, Case
from hessian_surgery.types import Array

PERMUTATIONS = 10_000
Groups: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class RankCorrelation:
    """How well a model's rank by a predictor predicts its rank by a gain.

    Attributes:
        gain: one of `GAINS`.
        predictor: one of `PREDICTORS`.
        within: whether models are ranked only among those of their group.
        models: the number of models.
        rho: Spearman's rank correlation. Within groups: the correlation of ranks minus their
            group's mean, over all groups.
        p: two-sided, by permutation of models, within their groups if `within`.
        p_holm: p corrected for the number of predictors by Holm's method.
    """

    gain: str
    predictor: str
    within: bool
    models: int
    rho: float
    p: float
    p_holm: float


@dataclass(frozen=True)
class Predictors:
    """The study's result.

    Attributes:
        method: the method whose gain is predicted.
        cases: one per model.
        relations: correlations of every gain with every predictor that varies.
        reliability: for each gain, the share of its variance over models that is not measurement
            error. If it is near 0, nothing could predict the gain.
    """

    method: str
    cases: tuple[Case, ...]
    relations: tuple[RankCorrelation, ...]
    reliability: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def relate(cases: Sequence[Case], method: str = METHOD, seed: int = 0) -> Predictors:
    """Correlate every predictor with every gain.

    Args:
        cases: one per model.
        method: the method whose gain it is.
        seed: fixes the permutations.
    """
    if not cases:
        raise InputError("nets: there is no model to study; train at least 1, or give other models")
    names = [case.name for case in cases]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"with: got two models named {twice!r}; give each model once")
    scopes = (False, True) if len({case.group for case in cases}) > 1 else (False,)
    found = [relation for gain in GAINS for within in scopes for relation in _relations(cases, gain, within, seed)]
    reliability = {gain: share for gain in GAINS if (share := _reliability(cases, gain)) is not None}
    return Predictors(method, tuple(cases), tuple(found), reliability)


def _relations(cases: Sequence[Case], gain: str, within: bool, seed: int) -> list[RankCorrelation]:
    usable = [case for case in cases if gain in case.gains]
    groups = np.unique([case.group if within else "" for case in usable], return_inverse=True)[1].astype(np.int64)
    gains = np.array([case.gains[gain].value for case in usable])
    tested = {
        name: result
        for name in PREDICTORS
        if (result := correlate(np.array([case.predictors[name] for case in usable]), gains, groups, seed))
    }
    corrected = holm([p for _, p in tested.values()])
    return [
        RankCorrelation(gain, name, within, len(usable), rho, p, p_holm)
        for (name, (rho, p)), p_holm in zip(tested.items(), corrected, strict=True)
    ]


def correlate(one: Array, other: Array, groups: Groups, seed: int = 0) -> tuple[float, float] | None:
    """Spearman's correlation of two values per model, ranked within groups, and its p-value.

    Args:
        one: a value for each model (n,).
        other: another (n,).
        groups: the group of each model (n,).
        seed: fixes the permutations.

    Returns:
        The correlation, and its two-sided p by permutation within groups. None if fewer than three
        models can be ranked, or if all have the same rank.
    """
    members = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    x = np.zeros(len(one))
    y = np.zeros(len(one))
    for part in members:
        middle = (len(part) + 1) / 2
        x[part] = rankdata(one[part]) - middle
        y[part] = rankdata(other[part]) - middle
    scale = np.sqrt((x @ x) * (y @ y))
    if sum(len(part) for part in members if len(part) > 1) < 3 or scale == 0:
        return None
    draw = numpy_generator(seed, "permutation")
    permuted = np.tile(y, (PERMUTATIONS, 1))
    for part in members:
        permuted[:, part] = draw.permuted(permuted[:, part], axis=1)
    as_extreme = np.abs(permuted @ x) >= abs(x @ y) - 1e-9
    return float(x @ y / scale), float((1 + as_extreme.sum()) / (1 + PERMUTATIONS))


def _reliability(cases: Sequence[Case], gain: str) -> float | None:
    known = [case.gains[gain] for case in cases if gain in case.gains]
    pairs = [(found.value, found.error) for found in known if found.error is not None]
    if len(pairs) < 3:
        return None
    values, errors = np.array(pairs).T
    spread = values.var(ddof=1)
    return float(max(0.0, 1 - np.mean(errors**2) / spread)) if spread > 0 else 0.0
