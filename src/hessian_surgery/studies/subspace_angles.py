"""How far apart two subspaces, or two sets of eigenvectors, are."""

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.curvature.lanczos import Spectrum
from hessian_surgery.types import Array

# Weights that are handled at a time: 150 MB for two sets of nine vectors.
PIECE = 1 << 20


def spike_rows(spectrum: Spectrum) -> Tensor:
    """The spikes (K, p) on the weights' device and in their dtype, ready to compute with."""
    return spectrum.whole_vectors().to(spectrum.space.device, spectrum.space.dtype)


def common_coordinates(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Express vectors (k, p) and (l, p) in an orthonormal basis of their common span.

    Angles and inner products stay the same, and become cheap to compute.

    Returns:
        Coordinates (k, r) and (l, r), with r ≤ k + l, in float64 on the CPU.
    """
    # The triangular factor R of a QR decomposition holds the vectors' coordinates in the basis Q,
    # which is not needed. We factorize pieces along p, and then the pieces' factors, because a
    # float64 copy of all vectors would take too much memory.
    pieces = zip(a.split(PIECE, dim=1), b.split(PIECE, dim=1), strict=True)
    factors = [torch.linalg.qr(torch.cat(pair).T.double(), mode="r").R for pair in pieces]
    coordinates = torch.linalg.qr(torch.cat(factors), mode="r").R.T.cpu()
    return coordinates[: len(a)], coordinates[len(a) :]


def principal_angles(a: Tensor, b: Tensor) -> Array:
    """Principal angles (min(k, l),) between the spans of rows a (k, p) and b (l, p).

    They are in degrees, largest first. Small angles come from sines and large ones from cosines, in
    float64. Rows that are orthonormal only to float32's rounding would make an arc cosine report
    hundredths of a degree between a space and itself. SciPy's `subspace_angles` has the same aim,
    but takes the cosine for a small angle if another angle is large.
    """
    large, small = sorted(common_coordinates(a, b), key=len, reverse=True)
    outer = torch.linalg.qr(large.T).Q
    inner = torch.linalg.qr(small.T).Q
    overlap = outer.T @ inner
    # The largest cosine and the smallest sine come first: both belong to the smallest angle.
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

    Matching is greedy, as in appendix A: first the closest pair, then the closest pair of the rows
    that are left, and so on.
    """
    left = cosines(a, b)
    matched = []
    for _ in range(min(left.shape)):
        row, column = np.unravel_index(left.argmax(), left.shape)
        matched.append(left[row, column])
        left = np.delete(np.delete(left, row, axis=0), column, axis=1)
    return np.array(matched)


def diagonal_cosines(a: Tensor, b: Tensor) -> Array:
    """|cos| (min(k, l),) between row i of a (k, p) and row i of b (l, p)."""
    return np.diagonal(cosines(a, b)).copy()
