"""How far apart two subspaces or two sets of eigenvectors are."""

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.types import Array

# Weights at a time: 150 MB for two sets of nine vectors.
PIECE = 1 << 20


def common_coordinates(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors (k, p) and (l, p) in an orthonormal basis of what they span: (k, r) and (l, r), r ≤ k + l.

    In float64 on the CPU. Angles and inner products stay as they are, and no longer cost anything.
    """
    # The triangular factor of a QR decomposition has the vectors in the basis that the other factor would hold. Piece
    # by piece along p, then once more for the pieces' factors, so that no float64 copy of the vectors is made.
    pieces = zip(a.split(PIECE, dim=1), b.split(PIECE, dim=1), strict=True)
    factors = [torch.linalg.qr(torch.cat(pair).T.double(), mode="r").R for pair in pieces]
    coordinates = torch.linalg.qr(torch.cat(factors), mode="r").R.T.cpu()
    return coordinates[: len(a)], coordinates[len(a) :]


def principal_angles(a: Tensor, b: Tensor) -> Array:
    """Principal angles (min(k, l),) in degrees, largest first, between the spans of rows a (k, p) and b (l, p).

    From sines where an angle is small and from cosines where it is large, in float64: rows that are orthonormal to
    float32's rounding only would make the arc cosine report hundredths of a degree between a space and itself.
    SciPy's `subspace_angles` has the same aim, but takes the cosine for a small angle that stands beside a large one.
    """
    large, small = sorted(common_coordinates(a, b), key=len, reverse=True)
    outer, inner = torch.linalg.qr(large.T).Q, torch.linalg.qr(small.T).Q
    overlap = outer.T @ inner
    # Largest cosine and smallest sine first: both belong to the smallest angle.
    cosine = torch.linalg.svdvals(overlap).clamp(max=1)
    sine = torch.linalg.svdvals(inner - outer @ overlap).clamp(max=1).flip(0)
    angles = torch.where(cosine**2 > 0.5, sine.arcsin(), cosine.arccos())
    return np.degrees(angles.flip(0).numpy())


def cosines(a: Tensor, b: Tensor) -> Array:
    """|cos| (k, l) between rows a (k, p) and b (l, p); eigenvectors have no sign."""
    first, second = common_coordinates(a, b)
    gram = torch.nn.functional.normalize(first, dim=1) @ torch.nn.functional.normalize(second, dim=1).T
    return gram.abs().numpy()


def matched_cosines(a: Tensor, b: Tensor) -> Array:
    """|cos| (min(k, l),) of matched rows of a (k, p) and b (l, p), largest first.

    Greedy, as in appendix A: the closest pair is matched, then the closest of what is left, and so on.
    """
    left = cosines(a, b)
    matched = []
    for _ in range(min(left.shape)):
        row, column = np.unravel_index(left.argmax(), left.shape)
        matched.append(left[row, column])
        left = np.delete(np.delete(left, row, axis=0), column, axis=1)
    return np.array(matched)


def diagonal_cosines(a: Tensor, b: Tensor) -> Array:
    """|cos| (min(k, l),) of rows of a (k, p) and b (l, p) that have the same number."""
    return np.diagonal(cosines(a, b)).copy()
