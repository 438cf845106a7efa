"""Shares with exact intervals and means with standard errors, as numbers and as text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

Figures = dict[str, dict[str, Any]]
# What a fraction is multiplied by for each unit that it is shown in.
SCALES = {"pp": 100.0, "%": 100.0, "s": 1.0, "": 1.0}


def share(hits: Sequence[bool]) -> dict[str, Any]:
    """The share of hits with its exact (Clopper–Pearson) 95 % interval."""
    count, total = sum(map(bool, hits)), len(hits)
    if total == 0:
        return {"share": None, "of": 0, "interval": None}
    interval = stats.binomtest(count, total).proportion_ci(0.95, method="exact")
    return {"share": count / total, "of": total, "interval": [float(interval.low), float(interval.high)]}


def average(values: Sequence[float], unit: str = "pp") -> dict[str, Any]:
    """The mean with its standard error over runs; values are fractions if the unit is pp or %."""
    if not values:
        return {"mean": None, "error": None, "unit": unit}
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
    return {"mean": float(np.mean(values)), "error": error, "unit": unit}


def as_text(figure: dict[str, Any]) -> str:
    """A share as `31 % [16, 50] of 29`, a mean as `-1.94 ± 0.11 pp`."""
    if "share" in figure:
        if figure["share"] is None:
            return "of none"
        low, high = (100 * bound for bound in figure["interval"])
        return f"{100 * figure['share']:.0f} % [{low:.0f}, {high:.0f}] of {figure['of']}"
    if figure["mean"] is None:
        return "none"
    scale = SCALES[figure["unit"]]
    return f"{scale * figure['mean']:.2f} ± {scale * figure['error']:.2f} {figure['unit']}".rstrip()
