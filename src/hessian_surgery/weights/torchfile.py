"""Torch files byte for byte: values are replaced where they lie, and all else stays as it is."""

import struct
import zipfile
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from hessian_surgery.pickle_scan import scan_pickle

# How many pickles an older file begins with.
PICKLES = 5
# What follows a file in a zip archive: this, and the file's checksum.
DESCRIPTOR = b"PK\x07\x08"


def check_bounds(path: Path) -> None:
    """Refuse a torch file that would take much more memory than it has bytes, or too deep a stack.

    Nothing in it is built.

    Raises:
        ValueError: it is such a file, or its pickles cannot be read.
    """
    size = path.stat().st_size
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            scan_pickle(file, size)
            for _ in range(PICKLES - 1 if file.tell() < size else 0):
                scan_pickle(file, size)
        return
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("its parts are compressed, which torch.save does not do; save it again")
        if sum(entry.file_size for entry in entries) > size:
            raise ValueError("its parts are larger than the file")
        for entry in entries:
            if entry.filename.endswith(".pkl"):
                scan_pickle(BytesIO(archive.read(entry)), entry.file_size)


def with_values(path: Path, content: Any) -> bytes | None:
    """Return a torch file with other values in its tensors.

    Args:
        path: the file.
        content: what `torch.load` read from it; its tensors now hold the other values.

    Returns:
        The bytes of the new file; None if the file's layout is not torch's own.
    """
    data = bytearray(path.read_bytes())
    new = [_bytes(storage) for storage in _storages(content, set())]
    try:
        if zipfile.is_zipfile(path):
            _fill_archive(data, new)
        else:
            _fill_stream(data, new)
    except (ValueError, LookupError, struct.error):
        return None
    return bytes(data)


def _storages(content: Any, seen: set[int]) -> Iterator[UntypedStorage]:
    """Yield what holds the values of the tensors, each once, in the order of the file."""
    if isinstance(content, Tensor):
        storage = content.untyped_storage()
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            yield storage
    elif isinstance(content, dict | list | tuple) and id(content) not in seen:
        seen.add(id(content))
        for own in content.values() if isinstance(content, dict) else content:
            yield from _storages(own, seen)


def _bytes(storage: UntypedStorage) -> bytes:
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes()


def _fill_archive(data: bytearray, new: list[bytes]) -> None:
    """Fill a file of torch 1.6 or newer: a zip archive, with storage n in the file `data/n`."""
    with zipfile.ZipFile(BytesIO(data)) as archive:
        entry_at = archive.start_dir
        for entry in archive.infolist():
            folder, _, number = entry.filename.rpartition("/data/")
            if folder and number.isdecimal():
                values = new[int(number)]
                names, extra = struct.unpack_from("<HH", data, entry.header_offset + 26)
                start = entry.header_offset + 30 + names + extra
                end = start + entry.file_size
                if len(values) != entry.file_size or entry.compress_type != zipfile.ZIP_STORED:
                    raise ValueError(entry.filename)
                data[start:end] = values
                places = [entry.header_offset + 14, entry_at + 16]
                places += [end + 4] if data[end : end + 4] == DESCRIPTOR else []
                for place in places:
                    if data[place : place + 4] == struct.pack("<L", entry.CRC):
                        struct.pack_into("<L", data, place, zlib.crc32(values))
            lengths = struct.unpack_from("<HHH", data, entry_at + 28)
            entry_at += 46 + sum(lengths)


def _fill_stream(data: bytearray, new: list[bytes]) -> None:
    """Fill an older file: five pickles, then for each storage its length and its values.

    The fourth pickle is the content, the fifth the names of the storages in the order that they
    are written in. The pickles are read as text; nothing is unpickled.
    """
    file = BytesIO(data)
    *_, content, written = (scan_pickle(file, len(data)) for _ in range(PICKLES))
    names = [name for name in dict.fromkeys(content) if name in set(written)]
    values = dict(zip(names, new, strict=True))
    start = file.tell()
    for name in written:
        start += 8
        data[start : start + len(values[name])] = values[name]
        start += len(values[name])
    if start != len(data):
        raise ValueError("something else follows the storages")
