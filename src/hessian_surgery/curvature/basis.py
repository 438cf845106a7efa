"""Basis: orthonormal vectors as rows, on the model's device, in host memory or on disk, whole or in half precision."""

import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from hessian_surgery.errors import InputError

Place: TypeAlias = Literal["device", "host", "disk"]
Precision: TypeAlias = Literal["full", "bfloat16"]

# Bytes of a piece that is widened or moved at a time: what a CPU's cache holds, and what keeps a GPU busy.
CACHE_BYTES, TRANSFER_BYTES = 4 << 20, 64 << 20
# Columns that are summed in the arithmetic's own precision at most.
SUMMED = 1 << 16
# Pieces that are read ahead where the rows are not on the device: one thread cannot keep up with a GPU.
READERS = 8


@dataclass(frozen=True)
class Storage:
    """Where the vectors of a basis are kept, and how.

    Attributes:
        rows: how many vectors there is room for.
        place: "device" (where the weights are), "host" memory, or a temporary file on "disk" (in TMPDIR).
        precision: "full", the arithmetic's own, or "bfloat16", half of float32's memory. Arithmetic is never in half
            precision; a vector's rounding, about 0.2 % of its length, is counted in the residuals.
    """

    rows: int
    place: Place = "device"
    precision: Precision = "full"


class Basis:
    """Up to `storage.rows` vectors of length p.

    Args:
        dimension: p.
        dtype: of the arithmetic, and of the vectors that go in and come out.
        device: where those are.
        storage: where and how the rows are kept.
    """

    def __init__(self, dimension: int, dtype: torch.dtype, device: torch.device, storage: Storage) -> None:
        self.dtype, self.device, self.storage = dtype, device, storage
        kept = torch.bfloat16 if storage.precision == "bfloat16" else dtype
        self._map: mmap.mmap | None = None
        if storage.place == "disk":
            self._map = _temporary_map(storage.rows * dimension * kept.itemsize)
            self._rows = torch.frombuffer(self._map, dtype=kept).view(storage.rows, dimension)
        else:
            place = device if storage.place == "device" else torch.device("cpu")
            self._rows = torch.empty(storage.rows, dimension, dtype=kept, device=place)
        self._count = 0
        self._pieces_read = 0

    def __len__(self) -> int:
        return self._count

    @property
    def rounding(self) -> float:
        """How far storing a unit vector moves it, at most."""
        return 0.0 if self._rows.dtype == self.dtype else torch.finfo(self._rows.dtype).eps / 4

    @property
    def nbytes(self) -> int:
        """Bytes that the rows take, on disk or in memory."""
        return self._rows.nbytes

    def append(self, vector: Tensor) -> Tensor:
        """Store a vector (p,); returns it as it was stored, which is rounded in half precision."""
        row = self._rows[self._count]
        row.copy_(vector)
        self._count += 1
        return vector if row.dtype == self.dtype else row.to(self.device, self.dtype)

    def project(self, vector: Tensor) -> Tensor:
        """The rows' inner products with a vector (p,) → (count,) in float64."""
        return project(self._used(), vector, self._release)

    def subtract(self, coefficients: Tensor, vector: Tensor) -> None:
        """Take Σ_i c_i q_i from a vector (p,), in place."""
        subtract(self._used(), coefficients, vector, self._release)

    def rotate(self, mixing: Tensor) -> Tensor:
        """Replace the rows by their combinations, in place: mixing (k, count), k ≤ count.

        Returns:
            How far rounding has moved each new row (k,).
        """
        used, mixing = self._used(), mixing.to(self.device, self.dtype)
        moved = torch.zeros(len(mixing), dtype=torch.float64)
        for columns, piece in _pieces(used, self.dtype, self.device, whole=False):
            mixed = mixing @ piece
            used[: len(mixing), columns] = mixed.to(used.device, used.dtype)
            if used.dtype != self.dtype:
                rounded = mixed.to(used.dtype).to(self.dtype)
                moved += (mixed - rounded).double().square().sum(dim=1).cpu()
            self._release()
        self._count = len(mixing)
        return moved.sqrt()

    def vectors(self) -> Tensor:
        """The rows (count, p) as they are kept; a copy where that sets most of the room free."""
        used = self._used()
        return used.clone() if self._map is None and 2 * self._count <= len(self._rows) else used

    def clear(self) -> None:
        """Forget the rows, keep the room."""
        self._count = 0

    def _used(self) -> Tensor:
        return self._rows[: self._count]

    def _release(self) -> None:
        # Pages of the file that are mapped count as this process's memory; some hundred MB of them are let stand, since
        # neighbouring pieces share pages.
        self._pieces_read += 1
        if self._map is not None and self._pieces_read % 64 == 0:
            self._map.madvise(mmap.MADV_DONTNEED)


def orthonormal(vectors: Iterable[Tensor], basis: Basis) -> Tensor:
    """The rows (k, p) of the QR factorization of vectors (p,) each, kept in an empty basis with room for them."""
    for vector in vectors:
        rest = vector.to(basis.device, basis.dtype, copy=True)
        for _ in range(2):
            basis.subtract(basis.project(rest), rest)
        basis.append(rest / length(rest))
    return basis.vectors()


def _nothing() -> None:
    pass


def length(vector: Tensor) -> float:
    """‖v‖, as `project` sums it."""
    return inner(vector, vector) ** 0.5


def inner(first: Tensor, second: Tensor) -> float:
    """⟨a, b⟩ of two vectors (p,), as `project` sums it."""
    return float(project(first[None], second))


def project(rows: Tensor, vector: Tensor, after: Callable[[], None] = _nothing) -> Tensor:
    """Inner products of rows (k, p), kept anywhere in any precision, with a vector (p,) → (k,) in float64.

    On a CPU they are summed in float64 over pieces: there a float32 sum over 23 million weights is off by 0.3 %.
    `after` is called after each piece of the rows has been read.
    """
    result = torch.zeros(len(rows), dtype=torch.float64, device=vector.device)
    for columns, piece in _pieces(rows, vector.dtype, vector.device, whole=vector.device.type != "cpu"):
        result += piece @ vector[columns]
        after()
    return result


def subtract(rows: Tensor, coefficients: Tensor, vector: Tensor, after: Callable[[], None] = _nothing) -> None:
    """vector ← vector − Σ_i c_i rows_i, in place, with rows (k, p) kept anywhere in any precision."""
    coefficients = coefficients.to(vector.device, vector.dtype)
    for columns, piece in _pieces(rows, vector.dtype, vector.device):
        vector[columns].addmv_(piece.T, coefficients, alpha=-1)
        after()


def _pieces(
    rows: Tensor, dtype: torch.dtype, device: torch.device, whole: bool = True
) -> Iterator[tuple[slice, Tensor]]:
    """Pieces of some columns each, in the arithmetic's dtype and place; one where `whole` and nothing is copied."""
    count, dimension = rows.shape
    room = CACHE_BYTES if device.type == "cpu" else TRANSFER_BYTES
    width = max(1, min(SUMMED if device.type == "cpu" else dimension, room // (max(1, count) * dtype.itemsize)))
    if whole and rows.dtype == dtype and rows.device == device:
        width = dimension
    parts = [slice(start, start + width) for start in range(0, dimension if count else 0, width)]
    if rows.device == device:
        yield from ((columns, rows[:, columns].to(dtype)) for columns in parts)
        return
    with ThreadPoolExecutor(READERS) as readers:
        ahead = [readers.submit(rows[:, columns].contiguous) for columns in parts[:READERS]]
        for i, columns in enumerate(parts):
            piece = ahead.pop(0).result()
            if i + READERS < len(parts):
                ahead.append(readers.submit(rows[:, parts[i + READERS]].contiguous))
            yield columns, piece.to(device).to(dtype)


def _temporary_map(size: int) -> mmap.mmap:
    """A file that has no name, so that it is gone when the process is."""
    try:
        with tempfile.TemporaryFile(prefix="hessian-surgery-") as file:
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk must show here, not as a signal later
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        folder = tempfile.gettempdir()
        raise InputError(f"basis: no room for {size / 1e9:.1f} GB in {folder}; set TMPDIR to a larger disk") from error
