"""The points of a front that no other beats."""

import numpy as np

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
