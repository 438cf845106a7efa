"""How independently classes can move: effective rank of their responses, and entangled pairs."""

from dataclasses import dataclass
from itertools import islice

import numpy as np
from scipy.special import xlogy

from hessian_surgery.short_repr import short_repr
from hessian_surgery.types import Array

# So many entangled pairs are listed: all of them up to 45 classes.
MOST_PAIRS = 1000


@dataclass(frozen=True)
class SensitivityStructure:
    """How independently the spikes can move the classes, according to S (section 10).

    Attributes:
        effective_rank: number of independent trade-offs: exp of the entropy of singular energies.
        singular_values: singular values of S, in descending order.
        flatness: σ₁/σ₂, the largest singular value over the second; None if there is no second.
        frobenius: Frobenius norm ‖S‖_F.
        entangled: pairs of classes that every spike moves in opposite directions (section 9.5).

    Example:
        >>> outcome.structure.effective_rank >= 1
        True
    """

    effective_rank: float
    singular_values: list[float]
    flatness: float | None
    frobenius: float
    entangled: list[tuple[str, str]]

    __repr__ = short_repr


def analyse(matrix: Array, classes: tuple[str, ...]) -> SensitivityStructure:
    """Analyse the structure of S (K, C)."""
    values = np.linalg.svd(matrix, compute_uv=False)
    second = values[1] if len(values) > 1 else 0.0
    return SensitivityStructure(
        effective_rank=effective_rank(matrix),
        singular_values=values.tolist(),
        flatness=float(values[0] / second) if second > 0 else None,
        frobenius=float(np.linalg.norm(matrix)),
        entangled=entangled_pairs(matrix, classes),
    )


def entangled_pairs(matrix: Array, classes: tuple[str, ...]) -> list[tuple[str, str]]:
    """Find pairs (j, k) with S_ij · S_ik < 0 for every spike i: no single spike helps both.

    At most `MOST_PAIRS`, in the order of the classes.
    """
    if len(matrix) == 0:
        return []
    signs = np.sign(matrix).astype(np.int8).T
    alike: dict[bytes, list[int]] = {}
    for j in np.flatnonzero((signs != 0).all(axis=1)).tolist():
        alike.setdefault(signs[j].tobytes(), []).append(j)
    pairs = (
        (classes[j], classes[k]) for j in range(len(classes)) for k in alike.get((-signs[j]).tobytes(), []) if j < k
    )
    return list(islice(pairs, MOST_PAIRS))


def effective_rank(matrix: Array) -> float:
    """Entropic effective rank (section 10.1): exp of the entropy of p_i = s_i² / Σ_k s_k².

    s_i are the singular values of the matrix.
    """
    energy = np.linalg.svd(matrix, compute_uv=False) ** 2
    if energy.sum() == 0:
        return 0.0
    share = energy / energy.sum()
    # Rounding must not lift it above the number of singular values.
    return min(float(np.exp(-xlogy(share, share).sum())), float(len(share)))
