"""Choose among candidates by accuracy and σ."""

import numpy as np

from hessian_surgery.evidence.accuracies import Rates
from hessian_surgery.types import Array


def unbeaten(accuracy: Array, spread: Array) -> list[int]:
    """Find the points (P,) that no other point beats in both accuracy and σ (`spread`).

    They come in descending order of accuracy.
    """
    kept: list[int] = []
    for i in np.lexsort((spread, -accuracy)):
        if not kept or spread[i] < spread[kept[-1]]:
            kept.append(int(i))
    return kept


def choose_within_floor(candidates: list[Rates], floor: float) -> int:
    """Choose the candidate with the least σ among those whose accuracy is not below the floor.

    If all are below it, the first is chosen, which does nothing.
    """
    allowed = [i for i, found in enumerate(candidates) if found.accuracy >= floor - 1e-12] or [0]
    return min(allowed, key=lambda i: (candidates[i].sigma, -candidates[i].accuracy))
