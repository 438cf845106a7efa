"""Slices of vectors: together they are the vector, whatever its length."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from hessian_surgery.curvature.basis import Storage
from hessian_surgery.curvature.operators import PlainSpace
from hessian_surgery.curvature.slices import Slices, make_basis, sliced, slices_of, width
from hessian_surgery.ranks import Ranks, acting


@given(st.integers(1, 30), st.integers(1, 7))
def test_slices_are_equal_in_length_and_make_up_the_vector(dimension, size):
    space = PlainSpace(dimension, torch.float64, torch.device("cpu"))
    vector = torch.arange(1.0, dimension + 1, dtype=torch.float64)
    parts = []
    for rank in range(size):
        with acting(Ranks(rank, size)):
            slices = Slices(space, Ranks(rank, size))
            assert slices.width == width(space)
            parts.append(slices.own(vector))
    assert {len(part) for part in parts} == {-(-dimension // size)}
    joined = torch.cat(parts)
    assert torch.equal(joined[:dimension], vector)
    assert not joined[dimension:].any()


def test_a_single_process_has_whole_vectors():
    matrix = torch.eye(5)
    space = PlainSpace(5, torch.float32, torch.device("cpu"))
    assert slices_of(space) is None
    assert sliced(matrix) is matrix
    assert make_basis(space, Storage(2)).nbytes == 2 * 5 * 4
