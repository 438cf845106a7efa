"""The original CIFAR-10 and CIFAR-100 python files.

They are pickles. An unpickler that can build nothing but arrays, bytes, strings, numbers and containers reads them: the
one exception to "never unpickle".
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

# What a pickled array is made of; numpy has moved the first between versions.
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
    ("numpy._core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
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
        """Only what an array is made of; anything else is refused before it runs."""
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise InputError(
                f"data: a CIFAR file asks for {module}.{name}, which is no part of an array: refused"
            ) from None


def read_cifar(folder: Path, kind: str, split: str, preprocessing: Preprocessing) -> LabelledSet:
    """One split of an extracted CIFAR archive.

    Args:
        folder: the archive's folder, or the one that holds it.
        kind: "cifar10" or "cifar100" (fine labels).
        split: "train" or "test".
        preprocessing: normalisation; the images are 32×32.
    """
    files = _FILES[kind]
    place = next((path.parent for path in sorted(folder.rglob(files["names"][0]))), None)
    if place is None:
        raise InputError(f"data: {folder} holds no {files['names'][0]}; it must be the extracted {kind} python archive")
    names = _load(place / files["names"][0])[_NAMES[kind]]
    parts = [_load(place / name) for name in files[split]]
    pixels = torch.from_numpy(np.concatenate([part[b"data"] for part in parts])).reshape(-1, 3, 32, 32)
    labels = torch.tensor([label for part in parts for label in part[_LABELS[kind]]])

    def fetch(positions: Tensor) -> Tensor:
        return preprocessing.normalize(pixels[positions])

    classes = tuple(name.decode() for name in names)
    return LabelledSet(fetch, labels, classes, torch.arange(len(labels)))


def _load(path: Path) -> dict[bytes, Any]:
    try:
        content = _ArrayUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except (OSError, EOFError, pickle.UnpicklingError, ValueError, TypeError, AttributeError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"data: {path} cannot be read as a CIFAR file: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"data: {path} holds a {type(content).__name__}, not a CIFAR batch")
    return content
