"""Basis: vectors as rows, on the device, in host memory or on disk, in full or half precision."""

import mmap
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.errors import FileError

Place: TypeAlias = Literal["device", "host", "disk"]
Precision: TypeAlias = Literal["full", "bfloat16"]

# Rows are worked on in pieces of this many bytes. On a CPU: what its cache holds.
CACHE_BYTES = 4 << 20
# From elsewhere to a GPU: what keeps the bus busy.
TRANSFER_BYTES = 32 << 20
# On a GPU: what it multiplies at full speed.
DEVICE_BYTES = 256 << 20
# At most this many columns are summed in the vector's own precision.
SUMMED = 1 << 16
# Pieces read ahead if the rows are not on the device: one thread cannot keep up with a GPU.
READERS = 8
# Bytes of a file on disk that may stay mapped; neighbouring pieces share pages.
MAPPED_BYTES = 128 << 20


@dataclass(frozen=True)
class Storage:
    """Where the vectors of a basis are kept, and how.

    Attributes:
        rows: the number of vectors that there is room for.
        place: "device" (where the weights are), "host" memory, or a temporary file on "disk" (in
            TMPDIR).
        precision: "full", as the arithmetic is, or "bfloat16", which takes half the memory of
            float32. Arithmetic is never in half precision. Rounding moves a vector by about 0.2 %
            of its length, which the residuals include.

    Example:
        >>> matrix = torch.diag(torch.arange(1.0, 9.0))
        >>> hs.lanczos(matrix, k=1, storage=hs.Storage(4, "host")).storage.place
        'host'
    """

    rows: int
    place: Place = "device"
    precision: Precision = "full"


class Basis:
    """Up to `storage.rows` vectors of length p.

    Args:
        dimension: p.
        dtype: of the arithmetic and of the vectors that go in and come out.
        device: where these vectors are.
        storage: where and how the rows are kept.
        total: sums a tensor over the ranks that hold the other slices of the vectors, in place; by
            default the vectors are whole.
    """

    def __init__(
        self,
        dimension: int,
        dtype: torch.dtype,
        device: torch.device,
        storage: Storage,
        total: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._total = total or _itself
        self.dtype = dtype
        self.device = device
        self.storage = storage
        kept = torch.bfloat16 if storage.precision == "bfloat16" else dtype
        self._map: mmap.mmap | None = None
        if storage.place == "disk":
            self._map = _temporary_map(storage.rows * dimension * kept.itemsize)
            self._rows = torch.frombuffer(self._map, dtype=kept).view(storage.rows, dimension)
        else:
            place = device if storage.place == "device" else torch.device("cpu")
            self._rows = torch.empty(storage.rows, dimension, dtype=kept, device=place)
        self._count = 0
        self._mapped = 0

    def __len__(self) -> int:
        return self._count

    @property
    def rounding(self) -> float:
        """How far storing a unit vector can move it."""
        return 0.0 if self._rows.dtype == self.dtype else torch.finfo(self._rows.dtype).eps / 4

    @property
    def nbytes(self) -> int:
        """The bytes that the rows take, on disk or in memory."""
        return self._rows.nbytes

    def append(self, vector: Tensor) -> Tensor:
        """Store a vector (p,) and return it as stored, which means rounded in half precision."""
        row = self._rows[self._count]
        row.copy_(vector)
        self._count += 1
        return vector if row.dtype == self.dtype else row.to(self.device, self.dtype)

    def project(self, vector: Tensor) -> Tensor:
        """Inner products of the rows with a vector (p,) → (count,) in float64."""
        return self._total(project(self._used(), vector, self._release))

    def inner(self, first: Tensor, second: Tensor) -> float:
        """⟨a, b⟩ of two vectors (p,), as `project` sums it."""
        return float(self._total(project(first[None], second)))

    def length(self, vector: Tensor) -> float:
        """‖v‖ of a vector (p,), as `project` sums it."""
        return self.inner(vector, vector) ** 0.5

    def subtract(self, coefficients: Tensor, vector: Tensor) -> None:
        """Subtract Σ_i c_i q_i from a vector (p,), in place."""
        subtract(self._used(), coefficients, vector, self._release)

    def rotate(self, mixing: Tensor, last: bool = False) -> Tensor:
        """Replace the rows by the combinations `mixing` (k, count) of them, k ≤ count, in place.

        The `last` time the new rows get memory of their own if that frees most of the basis.

        Returns:
            How far rounding has moved each new row (k,).
        """
        used = self._used()
        mixing = mixing.to(self.device, self.dtype)
        target = used
        if last and self._map is None and 2 * len(mixing) <= len(self._rows):
            target = torch.empty(len(mixing), used.shape[1], dtype=used.dtype, device=used.device)
        moved = torch.zeros(len(mixing), dtype=torch.float64)
        for _, columns, piece in _pieces(used, self.dtype, self.device, whole=False, tall=True):
            mixed = mixing @ piece
            target[: len(mixing), columns] = mixed.to(used.device, used.dtype)
            if used.dtype != self.dtype:
                rounded = mixed.to(used.dtype).to(self.dtype)
                moved += (mixed - rounded).double().square().sum(dim=1).cpu()
            self._release(piece.nbytes)
        self._count = len(mixing)
        if target is not used:
            self._rows = target
        return self._total(moved).sqrt()

    def vectors(self) -> Tensor:
        """The rows (count, p) as they are stored."""
        return self._used()

    def clear(self) -> None:
        """Forget the rows, but keep the room."""
        self._count = 0

    def _used(self) -> Tensor:
        return self._rows[: self._count]

    def _release(self, read: int) -> None:
        """Release mapped pages now and then: they count as this process's memory."""
        self._mapped += read
        if self._map is not None and self._mapped >= MAPPED_BYTES:
            self._map.madvise(mmap.MADV_DONTNEED)
            self._mapped = 0


def orthonormal(vectors: Iterable[Tensor], basis: Basis) -> Tensor:
    """The rows (k, p) of the QR factorization of k vectors (p,), stored in an empty basis."""
    for vector in vectors:
        rest = vector.to(basis.device, basis.dtype, copy=True)
        for _ in range(2):
            basis.subtract(basis.project(rest), rest)
        basis.append(rest / basis.length(rest))
    return basis.vectors()


def _nothing(_: int) -> None:
    pass


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def length(vector: Tensor) -> float:
    """‖v‖, as `project` sums it."""
    return inner(vector, vector) ** 0.5


def inner(first: Tensor, second: Tensor) -> float:
    """⟨a, b⟩ of two vectors (p,), as `project` sums it."""
    return float(project(first[None], second))


def project(rows: Tensor, vector: Tensor, after: Callable[[int], None] = _nothing) -> Tensor:
    """Inner products of rows (k, p), on any device in any precision, with a vector (p,) → (k,).

    With columns (p, g) it gives (k, g) and reads the rows once. Results are in float64. A CPU sums
    over pieces in float64: its float32 sum over 23 million weights is off by 0.3 %. `after` is
    called with the bytes of each piece of the rows once it has been read.
    """
    result = torch.zeros(len(rows), *vector.shape[1:], dtype=torch.float64, device=vector.device)
    for some, columns, piece in _pieces(rows, vector.dtype, vector.device, whole=vector.device.type != "cpu"):
        result[some] += piece @ vector[columns]
        after(piece.nbytes)
    return result


def subtract(rows: Tensor, coefficients: Tensor, vector: Tensor, after: Callable[[int], None] = _nothing) -> None:
    """vector ← vector − Σ_i c_i rows_i, in place; rows (k, p) on any device in any precision."""
    coefficients = coefficients.to(vector.device, vector.dtype)
    for some, columns, piece in _pieces(rows, vector.dtype, vector.device):
        vector[columns].addmv_(piece.T, coefficients[some], alpha=-1)
        after(piece.nbytes)


Piece: TypeAlias = tuple[slice, slice, Tensor]


def _pieces(
    rows: Tensor, dtype: torch.dtype, device: torch.device, whole: bool = True, tall: bool = False
) -> Iterator[Piece]:
    """The rows (k, p) in pieces (rows, columns, values), with values in `dtype` on `device`.

    They come as one piece if `whole` allows it and nothing has to be copied. Otherwise rows on the
    device come in columns as tall as all of them, and rows from elsewhere in the order of their
    memory, which reads fastest, unless `tall` asks for columns.
    """
    count, dimension = rows.shape
    here = rows.device == device
    room = CACHE_BYTES if device.type == "cpu" else DEVICE_BYTES if here else TRANSFER_BYTES
    if whole and here and rows.dtype == dtype:
        yield slice(0, count), slice(0, dimension), rows
        return
    longest = min(dimension, max(1, room // dtype.itemsize), SUMMED if device.type == "cpu" else dimension)
    height = max(1, count if here or tall else room // (longest * dtype.itemsize))
    width = max(1, min(longest, room // (height * dtype.itemsize)))
    parts = [
        (slice(top, min(top + height, count)), slice(left, min(left + width, dimension)))
        for top in range(0, count, height)
        for left in range(0, dimension, width)
    ]
    if here:
        yield from ((*part, rows[part].to(dtype)) for part in parts)
    else:
        yield from _fetched(rows, parts, dtype, device)


def _fetched(
    rows: Tensor, parts: list[tuple[slice, slice]], dtype: torch.dtype, device: torch.device
) -> Iterator[Piece]:
    """Pieces of rows from elsewhere, read ahead into page-locked memory: GPUs copy it fastest."""

    def read(part: tuple[slice, slice]) -> Tensor:
        source = rows[part]
        staged = torch.empty(source.shape, dtype=source.dtype, pin_memory=device.type == "cuda")
        # NumPy copies in this thread alone; PyTorch would start threads on all cores per reader.
        np.copyto(staged.view(torch.uint8).numpy(), source.view(torch.uint8).numpy())
        return staged

    with ThreadPoolExecutor(READERS) as readers:
        ahead = deque(readers.submit(read, part) for part in parts[:READERS])
        for i, part in enumerate(parts):
            staged = ahead.popleft().result()
            if i + READERS < len(parts):
                ahead.append(readers.submit(read, parts[i + READERS]))
            yield *part, staged.to(device, non_blocking=True).to(dtype)


def _temporary_map(size: int) -> mmap.mmap:
    """A mapped file without a name: it is gone when the process is."""
    try:
        with tempfile.TemporaryFile(prefix="hessian-surgery-") as file:
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk shows here, not as a signal later
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        folder = tempfile.gettempdir()
        raise FileError(f"basis: no room for {size / 1e9:.1f} GB in {folder}; set TMPDIR to a larger disk") from error
