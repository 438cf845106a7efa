"""Read image folders: one sub-folder per class, named after it."""

from pathlib import Path

import torch
from torch import Tensor

from hessian_surgery.data.images import Preprocessing
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.errors import FileError, InputError

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}

# Bytes of an image file at most.
LARGEST_FILE = 500_000_000


def read_imagefolder(folder: Path, preprocessing: Preprocessing) -> LabelledSet:
    """Read a folder; the classes are its sub-folders in alphabetical order. Decodes on demand."""
    classes = tuple(sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")))
    for name in classes:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"data: the folder {name!r} has a name that is not UTF-8; rename it") from error
    files = [(path, label) for label, name in enumerate(classes) for path in _images(folder / name)]
    if not files:
        raise InputError(f"data: {folder} holds no image; give a folder with a sub-folder of images for each class")
    return read_files([path for path, _ in files], torch.tensor([label for _, label in files]), classes, preprocessing)


def read_files(
    paths: list[Path], labels: Tensor, classes: tuple[str, ...], preprocessing: Preprocessing
) -> LabelledSet:
    """Make a labelled set of image files, decoded on demand."""

    def fetch(positions: Tensor) -> Tensor:
        chosen = [paths[i] for i in positions.tolist()]
        return preprocessing.batch([_read(path) for path in chosen], [str(path) for path in chosen])

    return LabelledSet(fetch, labels, classes, torch.arange(len(labels)))


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"data: {path} has more than {LARGEST_FILE:,} bytes; give smaller images")
        return path.read_bytes()
    except OSError as error:
        raise FileError(f"data: {path} cannot be read: {error.strerror}") from error
