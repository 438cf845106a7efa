"""Data from what the command line says: `digits`, `parquet:DIR` or `package.module:factory`."""

from dataclasses import dataclass
from pathlib import Path

from hessian_surgery.data.digits import digits
from hessian_surgery.data.labelled import LabelledSet, as_labelled
from hessian_surgery.data.parquet import Preprocessing, parquet_files, read_parquet
from hessian_surgery.data.splits import stratified_split
from hessian_surgery.errors import InputError
from hessian_surgery.importing import import_object


@dataclass(frozen=True)
class Parts:
    """The three parts of an operation's data.

    Attributes:
        hessian: what Hessian batches are drawn from: training images.
        sensitivity: half of the test images, which every decision is made on.
        heldout: the other half, which only the report sees.
    """

    hessian: LabelledSet
    sensitivity: LabelledSet
    heldout: LabelledSet


def open_data(spec: str, seed: int = 0, preprocessing: Preprocessing = Preprocessing()) -> Parts:
    """The parts of the data that `spec` names.

    Args:
        spec: `digits`; `parquet:DIR`, a folder with `train` and `test` (or `validation`); or
            `package.module:factory`, which returns a pair (train, test) of anything `as_labelled` takes.
        seed: fixes the halves, and the digits task.
        preprocessing: how images become inputs.
    """
    train, test = _train_and_test(spec, preprocessing, seed)
    if len(train.classes) != len(test.classes):
        raise InputError(f"data: train has {len(train.classes)} classes and test has {len(test.classes)}")
    sensitivity, heldout = stratified_split(test, (0.5, 0.5), seed)
    return Parts(train, sensitivity, heldout)


def _train_and_test(spec: str, preprocessing: Preprocessing, seed: int) -> tuple[LabelledSet, LabelledSet]:
    if spec == "digits":
        task = digits(seed)
        return task.train, task.test
    kind, _, place = spec.partition(":")
    if kind == "parquet":
        return _parquet_pair(Path(place), preprocessing)
    if place:
        pair = import_object(spec, "data")()
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise InputError(f"data: {spec} gave {type(pair).__name__}; it must return a pair (train, test)")
        return as_labelled(pair[0]), as_labelled(pair[1])
    raise InputError(f"data: got {spec!r}; give digits, parquet:DIR, or package.module:factory for your own")


def _parquet_pair(folder: Path, preprocessing: Preprocessing) -> tuple[LabelledSet, LabelledSet]:
    train = parquet_files(folder, "train")
    test = parquet_files(folder, "test") or parquet_files(folder, "validation")
    if not train or not test:
        found = sorted(path.name for path in folder.glob("*")) if folder.is_dir() else "no such folder"
        raise InputError(f"data: {folder} must hold train and test parquet files; found {found}")
    return read_parquet(train, preprocessing), read_parquet(test, preprocessing)
