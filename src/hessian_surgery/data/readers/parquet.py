"""Read Hugging Face's parquet files: encoded images, labels, and class names in the schema."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from hessian_surgery.data.class_names import numbered_names
from hessian_surgery.data.images import Preprocessing
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.errors import InputError
from hessian_surgery.plain_text import reason
from hessian_surgery.type_check import fault

# Rows of a file at most: a few bytes can stand for billions of equal ones.
MOST_ROWS = 50_000_000


def parquet_files(folder: Path, split: str) -> list[Path]:
    """Find the files of a split: `train.parquet`, `data/train-00000-of-00002.parquet`, …"""
    candidates = sorted([*folder.glob("*.parquet"), *folder.glob("data/*.parquet")])
    return [path for path in candidates if path.name.split(".")[0].split("-")[0] == split]


def read_parquet(files: list[Path], preprocessing: Preprocessing) -> LabelledSet:
    """Read the files of one split; images are decoded on demand.

    Args:
        files: the files, in order.
        preprocessing: how images become inputs.
    """
    try:
        image_column, label_column, classes = _columns(pq.read_schema(files[0]), files[0])
        for path in files:
            if pq.read_metadata(path).num_rows > MOST_ROWS:
                raise InputError(f"data: {path} has more than {MOST_ROWS:,} rows; give fewer images")
        table = pa.concat_tables([pq.read_table(path, columns=[image_column, label_column]) for path in files])
        labels = _labels(table[label_column], files[0])
    except InputError:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise InputError(f"data: {files[0].parent} cannot be read as parquet: {reason(error)}") from error
    images = table[image_column]
    nested = pa.types.is_struct(images.type)

    def fetch(positions: Tensor) -> Tensor:
        chosen = positions.tolist()
        names = [f"image {i} of {files[0].name}" for i in chosen]
        values = [images[i].as_py() for i in chosen]
        contents = [value["bytes"] if nested and value else value for value in values]
        for content, name in zip(contents, names, strict=True):
            if not isinstance(content, bytes):
                raise InputError(f"data: {name} holds no bytes; give encoded images")
        return preprocessing.batch(contents, names)

    return LabelledSet(fetch, labels, classes or numbered_names(labels), torch.arange(len(labels)))


def _labels(column: Any, path: Path) -> Tensor:
    """The labels (n,) of a column."""
    if len(column) == 0:
        raise InputError(f"data: {path} is empty; give at least one image")
    if not pa.types.is_integer(column.type):
        raise InputError(f"data: the labels of {path} are {column.type}; give whole numbers")
    if column.null_count:
        raise InputError(f"data: {path} has {column.null_count:,} images without a label; leave them out")
    return torch.from_numpy(column.to_numpy().astype(np.int64))


def _columns(schema: Any, path: Path) -> tuple[str, str, tuple[str, ...] | None]:
    """The image column, the label column and the class names."""
    features = _features((schema.metadata or {}).get(b"huggingface", b"{}"))
    kinds = {name: feature.get("_type") for name, feature in features.items()}
    images = [f.name for f in schema if kinds.get(f.name) == "Image" or _holds_bytes(f.type)]
    labels = [f.name for f in schema if kinds.get(f.name) == "ClassLabel"]
    labels += [f.name for f in schema if f.name in ("label", "labels") and pa.types.is_integer(f.type)]
    if not images or not labels:
        raise InputError(
            f"data: {path} has the columns {schema.names}; it needs an image column (encoded bytes) and an integer "
            "column 'label'"
        )
    names = features.get(labels[0], {}).get("names")
    wrong = fault(names, list[str] | None, "names")
    if wrong is not None:
        raise InputError(f"data: the class names of {path} cannot be used: {wrong}")
    return images[0], labels[0], tuple(names) if names else None


def _features(text: bytes) -> dict[str, dict[str, Any]]:
    """What the metadata of Hugging Face says of each column; nothing if it cannot be read."""
    try:
        features = json.loads(text)["info"]["features"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}
    known = features.items() if isinstance(features, dict) else ()
    return {name: feature for name, feature in known if isinstance(feature, dict)}


def _holds_bytes(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
