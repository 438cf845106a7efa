import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hessian_surgery.curvature import basis as bases
from hessian_surgery.curvature.basis import Basis, Storage, inner, length, orthonormal, project

CPU = torch.device("cpu")
KEPT = [(place, precision) for place in ("device", "host", "disk") for precision in ("full", "bfloat16")]


DEVICES = [CPU, *([torch.device("cuda", 0)] if torch.cuda.is_available() else [])]


def filled(rows, dimension, place, precision, dtype=torch.float32, seed=0, device=CPU):
    draw = torch.Generator().manual_seed(seed)
    exact = torch.linalg.qr(torch.randn(dimension, rows, generator=draw, dtype=torch.float64))[0].T.to(device, dtype)
    basis = Basis(dimension, dtype, device, Storage(rows + 2, place, precision))
    for row in exact:
        basis.append(row)
    return basis, exact


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize(("place", "precision"), KEPT)
@settings(deadline=None, max_examples=15)
@given(rows=st.integers(1, 9), dimension=st.integers(9, 300), width=st.integers(1, 400))
def test_the_same_wherever_and_however_it_is_kept(device, place, precision, rows, dimension, width):
    """Against dense arithmetic, with pieces from one column to all of them."""
    basis, exact = filled(rows, dimension, place, precision, device=device)
    vector = torch.randn(dimension, device=device)
    before = bases.CACHE_BYTES, bases.TRANSFER_BYTES
    bases.CACHE_BYTES = bases.TRANSFER_BYTES = 4 * rows * width
    try:
        slack = 1e-5 if precision == "full" else 0.02
        assert torch.allclose(basis.project(vector).float(), exact @ vector, atol=slack * vector.norm())
        rest = vector.clone()
        basis.subtract(torch.arange(rows), rest)
        expected = vector - exact.T @ torch.arange(rows, device=device).float()
        assert torch.allclose(rest, expected, atol=slack * (1 + rows))
        mixing = torch.randn((rows + 1) // 2, rows, dtype=torch.float64)
        kept = basis.vectors().float().cpu().clone()
        moved = basis.rotate(mixing)
        mixed = mixing.float() @ kept
        assert len(basis) == len(mixing)
        assert torch.allclose(basis.vectors().float().cpu(), mixed, atol=slack * mixing.abs().sum())
        assert torch.allclose((basis.vectors().float().cpu() - mixed).norm(dim=1), moved.float(), atol=1e-5)
    finally:
        bases.CACHE_BYTES, bases.TRANSFER_BYTES = before


@settings(deadline=None, max_examples=30)
@given(count=st.integers(1, 40), dimension=st.integers(1, 50), height=st.integers(1, 9), width=st.integers(1, 60))
def test_pieces_from_elsewhere_cover_the_rows_once_and_in_order(count, dimension, height, width):
    rows = torch.arange(float(count * dimension)).view(count, dimension).bfloat16()
    parts = [
        (slice(i, i + height), slice(j, j + width)) for i in range(0, count, height) for j in range(0, dimension, width)
    ]
    copied = torch.zeros(count, dimension)
    seen = torch.zeros(count, dimension)
    for some, columns, values in bases._fetched(rows, parts, torch.float32, CPU):
        copied[some, columns] = values
        seen[some, columns] += 1
    assert torch.equal(copied, rows.float())
    assert (seen == 1).all()


def test_appending_tells_what_was_kept():
    basis = Basis(100, torch.float32, CPU, Storage(2, "device", "bfloat16"))
    vector = torch.randn(100)
    kept = basis.append(vector)
    assert torch.equal(kept, vector.bfloat16().float())
    assert torch.equal(basis.vectors()[0].float(), kept)
    full = Basis(100, torch.float32, CPU, Storage(2))
    assert full.append(vector) is vector


@pytest.mark.parametrize("precision", ["full", "bfloat16"])
def test_the_last_rotation_gives_back_most_of_the_room(precision):
    basis, _ = filled(6, 10, "device", precision)
    mixing = torch.randn(3, 6, dtype=torch.float64)
    kept = basis.vectors().float()
    basis.rotate(mixing, last=True)
    found = basis.vectors()
    assert found.untyped_storage().nbytes() == 3 * 10 * found.element_size()
    assert torch.allclose(found.float(), mixing.float() @ kept, atol=1e-6 if precision == "full" else 0.05)
    basis.clear()
    assert len(basis) == 0


def test_vectors_on_disk_outlive_their_basis():
    basis, exact = filled(3, 50, "disk", "full")
    vectors = basis.vectors()
    del basis
    assert torch.equal(vectors, exact)


def test_orthonormal_rows_span_what_they_are_made_of():
    vectors = torch.randn(4, 30, dtype=torch.float64)
    rows = orthonormal(vectors, Basis(30, torch.float64, CPU, Storage(4)))
    assert torch.allclose(rows @ rows.T, torch.eye(4, dtype=torch.float64), atol=1e-12)
    assert torch.linalg.matrix_rank(torch.cat([rows, vectors])) == 4


def test_a_full_disk_is_said_before_anything_is_written(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bases.os, "posix_fallocate", full)
    with pytest.raises(ValueError, match=r"basis: no room for 0.0 GB in .*; set TMPDIR to a larger disk"):
        Basis(10, torch.float32, CPU, Storage(2, "disk"))


def test_sums_over_millions_of_weights_are_right_in_float32():
    """On a CPU a plain float32 norm of 20 million is off by 0.1 %, an inner product by more."""
    vector = torch.randn(20_000_000)
    exact = float(vector.double() @ vector.double())
    assert length(vector) == pytest.approx(exact**0.5, rel=1e-6)
    assert inner(vector, vector) == pytest.approx(exact, rel=1e-6)
    assert project(vector.bfloat16()[None], vector).item() == pytest.approx(exact, rel=1e-4)
