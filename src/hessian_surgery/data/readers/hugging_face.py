"""Read Hugging Face data sets: folders, or names on the Hub; their code is never run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hessian_surgery.data.class_names import numbered_names
from hessian_surgery.data.images import Preprocessing
from hessian_surgery.data.labelled import LABEL_KEYS, TOKENS, LabelledSet
from hessian_surgery.data.ragged import Ragged
from hessian_surgery.data.texts import TextEncoder, Tokens
from hessian_surgery.errors import InputError
from hessian_surgery.import_by_name import import_extra

# Files that mark what `save_to_disk` wrote: a set with parts, and a single one.
SAVED = ("dataset_dict.json", "state.json")
# Columns whose texts belong together, as in GLUE.
PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text", "text_pair"),
)


@dataclass(frozen=True)
class Encoding:
    """How rows become a model's inputs.

    Attributes:
        preprocessing: for images.
        texts: for texts; None if the model has no tokenizer.
        names: the model's class names, which labels that are words are in the order of.
    """

    preprocessing: Preprocessing
    texts: TextEncoder | None = None
    names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class _Columns:
    """Which columns of a set hold what.

    Attributes:
        label: the column of classes.
        names: the class names; None if classes are numbers without names.
        inputs: the column of images, the one or two columns of texts, or those of tokens.
        kind: what the inputs are.
    """

    label: str
    names: tuple[str, ...] | None
    inputs: tuple[str, ...]
    kind: str


def read_hugging_face(place: str, encoding: Encoding) -> dict[str, LabelledSet] | LabelledSet:
    """Open a data set: its parts by name, or a set without parts.

    Args:
        place: a folder that `datasets` can read, or a name on the Hub.
        encoding: how rows become inputs.
    """
    opened = open_dataset(place)
    return as_sets(opened, encoding) if isinstance(opened, Mapping) else as_set(opened, encoding)


def open_dataset(place: str) -> Any:
    """Open a data set with `datasets`: a `DatasetDict`, or a `Dataset`."""
    datasets = import_extra("datasets", "data", "hf")
    folder = Path(place).expanduser()
    if not place or (not folder.is_dir() and (place[0] in "./~" or place.count("/") > 1)):
        raise InputError(f"data: {place or 'the folder'} does not exist; give hf:DIR with a folder that does")
    shown = not datasets.are_progress_bars_disabled()
    try:
        datasets.disable_progress_bars()
        if any((folder / name).is_file() for name in SAVED):
            return datasets.load_from_disk(str(folder))
        return datasets.load_dataset(str(folder) if folder.is_dir() else place)
    except Exception as error:  # anything, from a damaged file to no network
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise InputError(
            f"data: hf:{place} cannot be opened: {reason}; give a folder of save_to_disk, or of csv, json or parquet "
            "files, or a set's name on the Hub"
        ) from error
    finally:
        if shown:
            datasets.enable_progress_bars()


def as_sets(parts: Mapping[str, Any], encoding: Encoding) -> dict[str, LabelledSet]:
    """A labelled set for each part of a `DatasetDict`, with the same classes.

    A part without labels, as the test parts of many competitions are, is left out.
    """
    found = {name: _columns(dataset) for name, dataset in parts.items()}
    said = {name: _labels(parts[name], columns) for name, columns in found.items()}
    labelled = {name: values for name, values in said.items() if not _unlabelled(values)}
    names = _names_of([value for values in labelled.values() for value in values], encoding)
    return {name: _as_set(parts[name], found[name], values, names, encoding) for name, values in labelled.items()}


def as_set(dataset: Any, encoding: Encoding) -> LabelledSet:
    """A labelled set from a `Dataset`."""
    columns = _columns(dataset)
    values = _labels(dataset, columns)
    names = _names_of(values, encoding)
    return _as_set(dataset, columns, values, names, encoding)


def _as_set(
    dataset: Any, columns: _Columns, values: Sequence[Any], names: tuple[str, ...] | None, encoding: Encoding
) -> LabelledSet:
    """Make the set; `names` are those of classes that are given as words."""
    if names is not None:
        numbers = {name: number for number, name in enumerate(names)}
        values = [numbers.get(value, -1) for value in values]
    if not values:
        raise InputError("data: the set is empty; give at least one row")
    if not all(isinstance(value, int) for value in values):
        wrong = next(value for value in values if not isinstance(value, int))
        raise InputError(f"data: a {columns.label!r} is {wrong!r}; give one whole number, or one name, for each row")
    labels = torch.tensor(values, dtype=torch.int64)
    classes = columns.names or names or numbered_names(labels)
    index = torch.arange(len(labels))
    if columns.kind == "image":
        return LabelledSet(_images(dataset, columns.inputs[0], encoding.preprocessing), labels, classes, index)
    texts = _texts(dataset, columns, encoding.texts)
    return LabelledSet(texts.fetch, labels, classes, index, ragged=texts)


def _images(dataset: Any, column: str, preprocessing: Preprocessing) -> Any:
    """The function that reads, decodes and prepares images."""
    datasets = import_extra("datasets", "data", "hf")
    encoded = dataset.select_columns([column]).with_format(None).cast_column(column, datasets.Image(decode=False))

    def fetch(positions: Tensor) -> Tensor:
        chosen = positions.tolist()
        names = [f"image {i}" for i in chosen]
        images = [encoded[i][column] for i in chosen]
        return preprocessing.batch([_content(*pair) for pair in zip(images, names, strict=True)], names)

    return fetch


def _content(image: Mapping[str, Any] | None, name: str) -> bytes:
    """The bytes of an image: held by the set, or in a file of their own."""
    try:
        held = None if image is None else image["bytes"] or Path(image["path"]).read_bytes()
    except (OSError, TypeError) as error:
        raise InputError(f"data: {name} cannot be read: {error}") from error
    if held is None:
        raise InputError(f"data: {name} is missing; leave such rows out")
    return held


def _texts(dataset: Any, columns: _Columns, encoder: TextEncoder | None) -> Ragged:
    """The texts one by one; tokenized when they are read."""
    if encoder is None:
        raise InputError(
            f"data: its column {columns.inputs[0]!r} holds texts, and the model has no tokenizer for them; give "
            "a model whose folder holds one, or other data"
        )
    rows = dataset.select_columns(list(columns.inputs)).with_format(None)
    if columns.kind == "tokens":
        return Ragged(rows.__getitem__, encoder.collate)
    encode = encoder.encode

    def read(position: int) -> Tokens:
        row = rows[position]
        words = [row[name] for name in columns.inputs]
        if any(text is None for text in words):
            raise InputError(f"data: row {position} has no {columns.inputs[words.index(None)]!r}; leave such rows out")
        return encode(*words)

    return Ragged(read, encoder.collate)


def _columns(dataset: Any) -> _Columns:
    """Find out which columns hold what, by their kinds and names."""
    features = dict(dataset.features)
    kinds = {name: type(feature).__name__ for name, feature in features.items()}
    labels = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    labels += [name for name in LABEL_KEYS if name in kinds]
    if not labels:
        raise InputError(f"data: it has the columns {list(features)}; one must be 'label', or a ClassLabel")
    label = next((name for name in LABEL_KEYS if name in labels), labels[0])
    names = getattr(features[label], "names", None)
    images = [name for name, kind in kinds.items() if kind == "Image"]
    inputs, kind = ((images[0],), "image") if images else _text_columns(features, label)
    return _Columns(label, tuple(names) if names else None, inputs, kind)


def _text_columns(features: Mapping[str, Any], label: str) -> tuple[tuple[str, ...], str]:
    """The columns of texts, or of tokens."""
    if TOKENS in features:
        return tuple(name for name in features if name in (TOKENS, "attention_mask", "token_type_ids")), "tokens"
    words = [n for n, f in features.items() if n != label and getattr(f, "dtype", "") in ("string", "large_string")]
    for pair in PAIRS:
        if set(pair) <= set(words):
            return pair, "texts"
    chosen = ["text"] if "text" in words else words
    if len(chosen) != 1:
        raise InputError(
            f"data: it has the columns {list(features)}; there must be one of images, or one of texts: "
            "leave others out, as by dataset.select_columns"
        )
    return tuple(chosen), "texts"


def _labels(dataset: Any, columns: _Columns) -> list[Any]:
    """The label of each row: whole numbers, or words."""
    return [int(v) if isinstance(v, bool) else v for v in dataset.with_format(None)[columns.label][:]]


def _names_of(values: Sequence[Any], encoding: Encoding) -> tuple[str, ...] | None:
    """The classes of labels that are words: the model's, if it has them all; else sorted."""
    words = {value for value in values if isinstance(value, str)}
    if encoding.names is not None and words and words <= set(encoding.names):
        return encoding.names
    return tuple(sorted(words)) or None


def _unlabelled(values: Sequence[Any]) -> bool:
    """Whether no row has a label: −1 stands for none."""
    return bool(values) and all(value in (-1, None) for value in values)
