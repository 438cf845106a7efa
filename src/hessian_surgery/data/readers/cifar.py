"""Read the original CIFAR-10 and CIFAR-100 python files.

They are pickles, the one exception to "never unpickle": the unpickler here builds nothing but
arrays, bytes, strings, numbers and containers.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.data.images import Preprocessing
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.errors import InputError
from hessian_surgery.pickle_scan import scan_pickle
from hessian_surgery.plain_text import reason


class _Bytes:
    """Takes the place of numpy's dtype; accepts bytes only."""

    def __init__(self, *arguments: Any) -> None:
        if not arguments or arguments[0] not in (b"u1", "u1"):
            raise InputError(f"data: a CIFAR file holds an array of {str(arguments[:1])[:60]}, not of bytes: refused")

    def __setstate__(self, state: Any) -> None:
        """Ignore byte order and flags, which mean nothing for bytes."""


class _Array:
    """Takes the place of numpy's array, which a file could make point anywhere."""

    def __init__(self, *arguments: Any) -> None:
        self.values = np.zeros(0, np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _Bytes) or not isinstance(raw, bytes) or fortran:
            raise InputError("data: a CIFAR file holds an array that is not plain bytes: refused")
        self.values = np.frombuffer(raw, np.uint8).reshape(shape)


# What a pickled array is made of, by its old and new names; the classes above build it.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Bytes,
    ("_codecs", "encode"): lambda text, encoding: text.encode("latin1"),
}
_FILES = {
    "cifar10": {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"], "names": ["batches.meta"]},
    "cifar100": {"train": ["train"], "test": ["test"], "names": ["meta"]},
}
_LABELS = {"cifar10": b"labels", "cifar100": b"fine_labels"}
_NAMES = {"cifar10": b"label_names", "cifar100": b"fine_label_names"}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Find what an array is made of; refuse anything else before it runs."""
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise InputError(f"data: a CIFAR file asks for {module}.{name}, which no array needs: refused") from None


def read_cifar(folder: Path, kind: str, split: str, preprocessing: Preprocessing) -> LabelledSet:
    """Read one split of an extracted CIFAR archive.

    Args:
        folder: the archive's folder, or the one that holds it.
        kind: "cifar10" or "cifar100" (fine labels).
        split: "train" or "test".
        preprocessing: how images are normalised; they stay 32×32.
    """
    files = _FILES[kind]
    place = next((path.parent for path in sorted(folder.rglob(files["names"][0]))), None)
    if place is None:
        raise InputError(f"data: {folder} holds no {files['names'][0]}; give the extracted {kind} python archive")
    try:
        names = [name.decode() for name in _load(place / files["names"][0])[_NAMES[kind]]]
        parts = [_load(place / name) for name in files[split]]
        rows = np.concatenate([part[b"data"].values.reshape(len(part[_LABELS[kind]]), 3072) for part in parts])
        labels = torch.tensor([int(label) for part in parts for label in part[_LABELS[kind]]])
    except InputError:
        raise
    except (LookupError, ValueError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        why = reason(error)
        raise InputError(f"data: {place} does not hold {kind}'s images, labels and names: {why}") from error
    pixels = torch.from_numpy(rows).reshape(-1, 3, 32, 32)

    def fetch(positions: Tensor) -> Tensor:
        return preprocessing.normalize(pixels[positions])

    return LabelledSet(fetch, labels, tuple(names), torch.arange(len(labels)), in_memory=True)


def _load(path: Path) -> dict[bytes, Any]:
    try:
        encoded = path.read_bytes()
        scan_pickle(io.BytesIO(encoded), len(encoded))
        content = _ArrayUnpickler(io.BytesIO(encoded), encoding="bytes").load()
    except InputError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise InputError(f"data: {path} cannot be read as a CIFAR file: {reason(error)}") from error
    if not isinstance(content, dict):
        raise InputError(f"data: {path} holds a {type(content).__name__}, not a CIFAR batch")
    return content
