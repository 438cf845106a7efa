"""How independently classes can move: effective rank of their responses, and entangled pairs."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.special import xlogy

from hessian_surgery.types import Array


@dataclass(frozen=True)
class SensitivityStructure:
    """How independently the spikes can move the classes, according to S (section 10).

    Attributes:
        effective_rank: number of independent trade-offs: exp of the entropy of singular energies.
        singular_values: singular values of S, in descending order.
        flatness: σ₁/σ₂, the largest singular value over the second; None if there is no second.
        frobenius: Frobenius norm ‖S‖_F.
        entangled: pairs of classes that every spike moves in opposite directions (section 9.5).
    """

    effective_rank: float
    singular_values: list[float]
    flatness: float | None
    frobenius: float
    entangled: list[tuple[str, str]]


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
    """Find pairs (j, k) with S_ij · S_ik < 0 for every spike i: what helps one hurts the other."""
    pairs = combinations(range(len(classes)), 2)
    return [(classes[j], classes[k]) for j, k in pairs if (matrix[:, j] * matrix[:, k] < 0).all()]


def effective_rank(matrix: Array) -> float:
    """Entropic effective rank (section 10.1): exp of the entropy of p_i = s_i² / Σ_k s_k².

    s_i are the singular values of the matrix.
    """
    energy = np.linalg.svd(matrix, compute_uv=False) ** 2
    if energy.sum() == 0:
        return 0.0
    share = energy / energy.sum()
    return float(np.exp(-xlogy(share, share).sum()))
