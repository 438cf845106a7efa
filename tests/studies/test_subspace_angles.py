import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st

from hessian_surgery.studies import subspace_angles
from hessian_surgery.studies.subspace_angles import (
    common_coordinates,
    diagonal_cosines,
    matched_cosines,
    principal_angles,
)


def rows(count, dimension, seed, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(dimension, count, generator=draw, dtype=torch.float64)).Q.T.to(dtype)


shapes = {"k": st.integers(1, 5), "l": st.integers(1, 5), "p": st.integers(5, 40), "seed": st.integers(0, 10**6)}


@given(**shapes)
def test_angles_are_scipys(k, l, p, seed):  # noqa: E741
    a, b = rows(k, p, seed), rows(l, p, seed + 1)
    expected = np.degrees(scipy.linalg.subspace_angles(a.T.numpy(), b.T.numpy()))
    assert principal_angles(a, b) == pytest.approx(expected, abs=1e-5)


@given(degrees=st.lists(st.floats(1e-10, 90), min_size=1, max_size=4), seed=st.integers(0, 10**6))
def test_known_angles_come_back_even_small_ones(degrees, seed):
    """Each vector of one space turns by its angle towards an axis outside the other space."""
    k = len(degrees)
    frame = rows(2 * k, 50, seed)
    turn = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    a = frame[:k]
    b = turn.cos()[:, None] * a + turn.sin()[:, None] * frame[k:]
    mixed = rows(k, k, seed + 1) @ b
    assert principal_angles(a, mixed) == pytest.approx(sorted(degrees, reverse=True), rel=1e-6, abs=1e-11)


def test_a_float32_space_has_no_angle_with_itself():
    a = rows(9, 5000, 0, torch.float32) * 1.0001  # nor are these unit vectors
    assert principal_angles(a, a).max() < 1e-9
    rotated = rows(9, 9, 1, torch.float32) @ a
    assert principal_angles(a, rotated).max() < 1e-4


def greedy(cosines):
    """Match greedily, the slow and plain way."""
    left = {(i, j): c for i, row in enumerate(cosines) for j, c in enumerate(row)}
    while left:
        best = max(left, key=left.get)
        yield left[best]
        left = {(i, j): c for (i, j), c in left.items() if i != best[0] and j != best[1]}


@given(**shapes)
def test_matched_cosines_are_greedy(k, l, p, seed):  # noqa: E741
    a, b = rows(k, p, seed), rows(l, p, seed + 1)
    expected = list(greedy((a @ b.T).abs().tolist()))
    assert matched_cosines(a, b) == pytest.approx(expected, abs=1e-9)
    assert diagonal_cosines(a, b) == pytest.approx((a @ b.T).abs().diagonal().tolist(), abs=1e-9)


def test_matching_ignores_order_and_sign():
    a = rows(5, 30, 3)
    shuffled = -a[[2, 0, 1, 4, 3]]
    assert matched_cosines(a, shuffled) == pytest.approx(np.ones(5))
    assert diagonal_cosines(a, shuffled) == pytest.approx(np.zeros(5), abs=1e-12)


@given(**shapes)
def test_common_coordinates_keep_inner_products(k, l, p, seed):  # noqa: E741
    a, b = rows(k, p, seed), rows(l, p, seed + 1)
    first, second = common_coordinates(a, b)
    assert first.shape[1] <= k + l
    assert torch.allclose(first @ second.T, a @ b.T, atol=1e-12)


def test_pieces_make_no_difference(monkeypatch):
    a, b = rows(3, 50, 0), rows(4, 50, 1)
    whole = principal_angles(a, b)
    monkeypatch.setattr(subspace_angles, "PIECE", 9)
    assert principal_angles(a, b) == pytest.approx(whole, abs=1e-9)
    assert principal_angles(a, a).max() < 1e-9
