"""Read Hugging Face's parquet files: encoded images, labels, and class names in the schema."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from hessian_surgery.data.images import Preprocessing
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.errors import InputError


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
        table = pa.concat_tables([pq.read_table(path, columns=[image_column, label_column]) for path in files])
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"data: {files[0].parent} cannot be read as parquet: {error}") from error
    labels = torch.from_numpy(table[label_column].to_numpy().astype(np.int64))
    if len(labels) == 0:
        raise InputError(f"data: {files[0]} is empty; give at least one image")
    images = table[image_column]
    nested = pa.types.is_struct(images.type)

    def fetch(positions: Tensor) -> Tensor:
        chosen = positions.tolist()
        values = [images[i].as_py() for i in chosen]
        contents = [value["bytes"] if nested else value for value in values]
        return preprocessing.batch(contents, [f"image {i} of {files[0].name}" for i in chosen])

    names = classes or tuple(str(i) for i in range(int(labels.max()) + 1))
    return LabelledSet(fetch, labels, names, torch.arange(len(labels)))


def _columns(schema: Any, path: Path) -> tuple[str, str, tuple[str, ...] | None]:
    """The image column, the label column and the class names."""
    metadata = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = metadata.get("info", {}).get("features", {})
    kinds = {name: feature.get("_type") for name, feature in features.items() if isinstance(feature, dict)}
    images = [f.name for f in schema if kinds.get(f.name) == "Image" or _holds_bytes(f.type)]
    labels = [f.name for f in schema if kinds.get(f.name) == "ClassLabel"]
    labels += [f.name for f in schema if f.name in ("label", "labels") and pa.types.is_integer(f.type)]
    if not images or not labels:
        raise InputError(
            f"data: {path} has the columns {schema.names}; it needs an image column (encoded bytes) and an integer "
            "column 'label'"
        )
    names = features.get(labels[0], {}).get("names")
    return images[0], labels[0], tuple(names) if names else None


def _holds_bytes(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
