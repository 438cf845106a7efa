"""Safetensors files byte for byte: a header that is kept as it is, and the tensors after it."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hessian_surgery.errors import FileError
from hessian_surgery.files import written_beside
from hessian_surgery.plain_text import reason
from hessian_surgery.ranks import present

# What a damaged file raises: a dtype that torch lacks, a name that is no UTF-8, too little memory.
UNREADABLE = (SafetensorError, OSError, ValueError, KeyError, AttributeError, RuntimeError, MemoryError, OverflowError)


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file; a tied tensor is written once for each of its names."""
    with written_beside(path) as beside:
        if present().writes:
            own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
            save_file(own, beside, {"format": "pt"} | dict(metadata or {}))
            _sort_metadata(beside)


def _sort_metadata(path: Path) -> None:
    """Give equal tensors and metadata equal bytes: the library writes metadata in random order."""
    header = read_header(path)
    content = json.loads(header)
    content["__metadata__"] = dict(sorted(content["__metadata__"].items()))
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    length = len(header.encode("utf-8"))
    if len(text) <= length:  # it is the same text in another order; only odd characters could make it longer
        with path.open("r+b") as file:
            file.seek(8)
            file.write(text.ljust(length))


def file_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> int:
    """The size of the file that `save_tensors` would write, for tensors of whole numbers."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"} | dict(metadata or {})}
    end = 0
    for name in sorted(tensors, key=lambda key: (-tensors[key].element_size(), key)):
        tensor = tensors[name]
        bits = f"{'U' if tensor.dtype == torch.uint8 else 'I'}{8 * tensor.element_size()}"
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": bits, "shape": list(tensor.shape), "data_offsets": [start, end]}
    written = len(json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8"))
    return 8 + written + -written % 8 + end


def read_tensors(path: Path, argument: str = "file") -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the metadata of a safetensors file.

    The library checks the header: no tensor overlaps another, or reaches beyond the file.

    Raises:
        FileError: the file cannot be read; `argument` says where it was given.
    """
    with _opened(path, argument) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        return tensors, file.metadata() or {}


@contextmanager
def _opened(path: Path, argument: str) -> Iterator[Any]:
    """Open a safetensors file; what is wrong with it becomes a FileError."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except UNREADABLE as error:
        why = f"cannot be read as safetensors, it may be truncated: {reason(error)}"
        raise FileError(f"{argument}: {path} {why}") from error


def save_checked(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file that `read_checked` can tell from a damaged one."""
    save_tensors(path, tensors, dict(metadata) | {"sha256": _checksum(tensors, metadata)})


def read_checked(path: Path, argument: str = "resume") -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what `save_checked` wrote.

    Raises:
        FileError: it cannot be read, or a bit of it has changed since.
    """
    tensors, metadata = read_tensors(path, argument)
    if metadata.pop("sha256", "") != _checksum(tensors, {k: v for k, v in metadata.items() if k != "format"}):
        raise FileError(
            f"{argument}: {path} cannot be read: its checksum does not fit, so it is damaged; begin again in another "
            "folder"
        )
    return tensors, metadata


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """A hash of all tensors and all metadata."""
    text = json.dumps(dict(metadata), sort_keys=True)
    return hashlib.sha256(f"{weights_sha256(tensors)} {text}".encode()).hexdigest()


def read_metadata(path: Path, argument: str = "resume") -> dict[str, str]:
    """Read the metadata of a safetensors file, and no tensor."""
    with _opened(path, argument) as file:
        return file.metadata() or {}


def read_header(path: Path) -> str:
    """Read the header of a safetensors file: JSON, with its padding."""
    with path.open("rb") as file:
        return file.read(int.from_bytes(file.read(8), "little")).decode("utf-8")


def save_like(path: Path, header: str, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file with a given header, whose names, dtypes and shapes must fit."""
    encoded = header.encode("utf-8")
    places = {name: entry for name, entry in json.loads(header).items() if name != "__metadata__"}
    with written_beside(path) as beside:
        if not present().writes:
            return
        _write_like(beside, encoded, places, tensors)


def _write_like(path: Path, encoded: bytes, places: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for name in sorted(places, key=lambda key: places[key]["data_offsets"]):
            file.write(_bytes(tensors[name]))


def weights_sha256(tensors: Mapping[str, Tensor]) -> str:
    """Hash names, dtypes, shapes and bits; the kind of file does not matter."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name}\0{tensors[name].dtype}\0{tuple(tensors[name].shape)}\0".encode())
        digest.update(_bytes(tensors[name]))
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """Hash a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()
