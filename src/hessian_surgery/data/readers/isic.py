"""Read ISIC-2019: a CSV table of one-hot diagnoses beside a folder of images."""

import csv
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from hessian_surgery.data.images import Preprocessing
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.readers.imagefolder import SUFFIXES, read_files
from hessian_surgery.errors import InputError
from hessian_surgery.plain_text import reason
from hessian_surgery.seeding import generator

TEST_SHARE = 0.25


def read_isic(folder: Path, preprocessing: Preprocessing, seed: int) -> tuple[LabelledSet, LabelledSet]:
    """Read the train and the test images.

    `*Test_GroundTruth.csv` gives the test part. Without it, a quarter of the training images does,
    split by lesion if `*Training_Metadata.csv` names the lesions: no lesion is in both parts.

    Args:
        folder: holds `*Training_GroundTruth.csv`, the other tables and the images, at any depth.
        preprocessing: how images become inputs; it needs a size, since the images differ in size.
        seed: fixes the split.
    """
    rows = _truth(_only(folder, "*Training_GroundTruth.csv"))
    classes = tuple(name for name in next(iter(rows.values())) if any(row[name] == 1 for row in rows.values()))
    images = {path.stem: path for path in sorted(folder.rglob("*")) if path.suffix.lower() in SUFFIXES}
    if list(folder.rglob("*Test_GroundTruth.csv")):
        # The official test table has images of an unknown class, which no model was trained on.
        tests = _truth(_only(folder, "*Test_GroundTruth.csv"))
        tests = {name: row for name, row in tests.items() if _diagnosis(row) in classes}
    else:
        chosen = _test_images(folder, list(rows), seed)
        tests = {name: rows.pop(name) for name in chosen}
    test = _labelled(tests, classes, images, preprocessing, folder)
    return _labelled(rows, classes, images, preprocessing, folder), test


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.rglob(pattern))
    if len(found) != 1:
        raise InputError(f"data: {folder} must hold one {pattern}; found {len(found)}")
    return found[0]


def _truth(path: Path) -> dict[str, dict[str, float]]:
    """Read a table: image name → {diagnosis: 0 or 1}."""
    rows: dict[str, dict[str, float]] = {}
    with _table(path) as table:
        for number, row in enumerate(table, start=2):
            name = row.pop("image", None)
            if name in rows:
                raise InputError(
                    f"data: {path.name}, line {number}: {name!r} has a line already; give one for each image"
                )
            for weight in ("score_weight", "validation_weight"):  # in the official test table
                row.pop(weight, None)
            try:
                diagnoses = {key: float(value) for key, value in row.items()}
            except (TypeError, ValueError):
                raise InputError(
                    f"data: {path.name}, line {number}: a diagnosis is not a number; give 0 or 1"
                ) from None
            if name is None or sorted(diagnoses.values())[-1:] != [1] or sum(diagnoses.values()) != 1:
                raise InputError(f"data: {path.name}, line {number}: give 'image' and one diagnosis that is 1")
            rows[name] = diagnoses
    if not rows:
        raise InputError(f"data: {path} has no rows; give at least one image")
    return rows


@contextmanager
def _table(path: Path) -> Iterator[Any]:
    """Open a CSV table; its rows are dicts."""
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            yield csv.DictReader(file)
    except (OSError, csv.Error) as error:
        raise InputError(f"data: {path} cannot be read as a table: {reason(error)}") from error


def _diagnosis(row: dict[str, float]) -> str:
    return max(row, key=lambda key: row[key])


def _test_images(folder: Path, names: list[str], seed: int) -> list[str]:
    """Draw a share of the lesions, with all their images; an image without one counts as one."""
    lesions = dict.fromkeys(names, "")
    for path in folder.rglob("*Training_Metadata.csv"):
        with _table(path) as table:
            lesions |= {str(row.get("image")): str(row.get("lesion_id") or "") for row in table}
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[lesions[name] or name].append(name)
    keys = sorted(groups)
    order = torch.randperm(len(keys), generator=generator(seed, "isic-split")).tolist()
    chosen: list[str] = []
    for i in order:
        if len(chosen) >= TEST_SHARE * len(names):
            break
        chosen.extend(groups[keys[i]])
    return chosen


def _labelled(
    rows: dict[str, dict[str, float]],
    classes: tuple[str, ...],
    images: dict[str, Path],
    preprocessing: Preprocessing,
    folder: Path,
) -> LabelledSet:
    if not rows:
        raise InputError(f"data: {folder} leaves no image for one of its parts; give images of more lesions or classes")
    missing = next((name for name in rows if name not in images), None)
    if missing is not None:
        raise InputError(f"data: {folder} has a diagnosis of {missing} but no such image; add it or delete the line")
    labels = torch.tensor([classes.index(_diagnosis(row)) for row in rows.values()])
    return read_files([images[name] for name in rows], labels, classes, preprocessing)
