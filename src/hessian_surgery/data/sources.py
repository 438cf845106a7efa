"""Open the data that a spec such as `digits`, `parquet:DIR` or `package.module:factory` names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from hessian_surgery.data.class_names import common_names
from hessian_surgery.data.datamodule import datamodule_sets, is_datamodule
from hessian_surgery.data.images import Preprocessing
from hessian_surgery.data.labelled import LabelledSet, as_labelled
from hessian_surgery.data.readers.cifar import read_cifar
from hessian_surgery.data.readers.digits import digits
from hessian_surgery.data.readers.hugging_face import SAVED, Encoding, read_hugging_face
from hessian_surgery.data.readers.imagefolder import read_imagefolder
from hessian_surgery.data.readers.isic import read_isic
from hessian_surgery.data.readers.parquet import parquet_files, read_parquet
from hessian_surgery.data.splits import stratified_split
from hessian_surgery.errors import InputError, calling_it
from hessian_surgery.import_by_name import call_object
from hessian_surgery.stored import blamed_on

SPECS = "digits, hf:DIR, parquet:DIR, imagefolder:DIR, cifar10:DIR, cifar100:DIR, isic:DIR, or package.module:factory"
IMAGE_KINDS = ("parquet", "imagefolder", "cifar10", "cifar100", "isic")
HUGGING_FACE = "hf"
TEST_NAMES = ("test", "validation", "val", "valid")
PARTS = ("training", "calibration", "heldout")


@dataclass(frozen=True)
class Parts:
    """The three parts of an operation's data; a part that is neither needed nor given is empty.

    Attributes:
        training: images that the model was trained on, for Hessian batches and class gradients.
        calibration: images that every decision is made on.
        heldout: images that only the report sees.
    """

    training: LabelledSet
    calibration: LabelledSet
    heldout: LabelledSet


@dataclass(frozen=True)
class Source:
    """The data that a spec names: a single set, or a train and a test part."""

    train: LabelledSet | None
    test: LabelledSet | None
    single: LabelledSet | None = None

    def part(self, split: str, option: str) -> LabelledSet:
        """The single set, or else the train or test part; `option` is for the error message."""
        found = self.single if self.single is not None else (self.train if split == "train" else self.test)
        if found is None:
            raise InputError(f"{option}: it has no {split} part; give data that has one")
        return found


def open_data(
    spec: str | None,
    seed: int = 0,
    preprocessing: Preprocessing = Preprocessing(),
    *,
    encoding: Encoding | None = None,
    training: str | None = None,
    calibration: str | None = None,
    heldout: str | None = None,
    needs: Sequence[str] = PARTS,
    halve: bool = True,
) -> Parts:
    """Open the three parts of the data.

    Args:
        spec: names data for all parts. Its train part is the training data; its test part is halved
            into calibration and held-out data.
        seed: fixes the halves, the digits task and ISIC's split.
        preprocessing: how images become inputs.
        encoding: how rows of Hugging Face's sets do; by default images alone, by `preprocessing`.
        training: spec of other training data: its train part, or all of it if it is a single set.
        calibration: spec of other calibration data: its test part, or all of it. The held-out data
            is then the whole test part of `spec`. `SPEC:train` gives training images.
        heldout: spec of other held-out data, likewise. The calibration data is then the whole test
            part of `spec`.
        needs: the parts that must be there; the training data must always be.
        halve: False makes the whole test part of `spec` calibration data, for folds.

    Raises:
        InputError: a part that is needed is missing, or the parts do not fit together.
    """

    def opened(part_spec: str | None, split: str, option: str) -> LabelledSet | None:
        with calling_it(option, "data"):
            return open_source(part_spec, seed, preprocessing, encoding).part(split, option) if part_spec else None

    if heldout or (calibration and "heldout" in needs):
        _require_two(calibration or spec, heldout or spec)
    whole = open_source(spec, seed, preprocessing, encoding) if spec else Source(None, None)
    train = opened(training, "train", "training_data") if training else whole.train
    decide = opened(calibration, "test", "calibration_data")
    report = opened(heldout, "test", "heldout_data")
    if whole.test is not None:
        decide, report = _fill_in(whole.test, decide, report, seed if halve else None)
    found = dict(zip(PARTS, (train, decide, report), strict=True))
    missing = [part for part in needs if found[part] is None]
    if train is None or missing:
        raise InputError(_lacking(spec, whole, missing))
    nothing = train.subset(torch.empty(0, dtype=torch.int64))
    return _with_common_names({name: nothing if part is None else part for name, part in found.items()})


def _require_two(decides: str | None, judges: str | None) -> None:
    """Refuse to judge on the data that decisions are made on."""
    if (decides or "").removesuffix(":test") == (judges or "").removesuffix(":test"):
        raise InputError(f"heldout_data: {judges} is the calibration data as well; give data alone to halve it")


def _with_common_names(parts: dict[str, LabelledSet]) -> Parts:
    names = common_names({f"{name}_data": part.classes for name, part in parts.items()})
    return Parts(*(replace(part, classes=names) for part in parts.values()))


def _fill_in(
    test: LabelledSet, decide: LabelledSet | None, report: LabelledSet | None, seed: int | None
) -> tuple[LabelledSet, LabelledSet | None]:
    """Take the parts that were not given from the test part; without a seed it is not halved."""
    if seed is None:
        return (test if decide is None else decide), report
    if decide is None and report is None:
        first, second = stratified_split(test, (0.5, 0.5), seed)
        return first, second
    return (test if decide is None else decide), (test if report is None else report)


def _lacking(spec: str | None, source: Source, missing: list[str]) -> str:
    """The message that says which part of the data is missing."""
    lacking = " and ".join(f"{part}_data" for part in missing)
    if spec is None:
        return f"data: missing; give it, or {lacking}"
    if source.single is not None:
        return f"data: {spec} is a single set, without train and test parts; give {lacking}"
    part = "train" if "training" in missing else "test"
    return f"data: {spec} has no {part} part; add one, or give {lacking}"


def split_spec(spec: str) -> tuple[str, str | None]:
    """The spec without `:train` or `:test` at its end, and which of the two it was, if any."""
    whole, _, part = spec.rpartition(":")
    kind, colon, _ = whole.partition(":")
    named = part in ("train", "test") and (whole == "digits" or (kind in (*IMAGE_KINDS, HUGGING_FACE) and bool(colon)))
    return (whole, part) if named else (spec, None)


def calibrates_on_training(spec: str | None, training: str | None, calibration: str | None) -> bool:
    """Whether the calibration data are training images, asked for as `SPEC:train`."""
    if calibration is None or split_spec(calibration)[1] != "train":
        return False
    return split_spec(training or spec or "")[0] == split_spec(calibration)[0]


def open_source(
    spec: str, seed: int, preprocessing: Preprocessing = Preprocessing(), encoding: Encoding | None = None
) -> Source:
    """Open the data that one spec names; with `:train` or `:test` at its end, only that part."""
    whole, part = split_spec(spec)
    if part is not None:
        return Source(None, None, open_source(whole, seed, preprocessing, encoding).part(part, f"data: {whole}"))
    kind, _, place = spec.partition(":")
    if kind in (*IMAGE_KINDS, HUGGING_FACE):
        _refuse_other_part(spec)
    folder = Path(place)
    if spec == "digits":
        task = digits(seed)
        return Source(task.train, task.test)
    if kind in IMAGE_KINDS:
        # Readers say what is wrong with a file; this is about folders that cannot be listed.
        with blamed_on(f"data: {place}"):
            return _open_folder(kind, folder, seed, preprocessing)
    if kind == HUGGING_FACE:
        return source_of(read_hugging_face(place, encoding or Encoding(preprocessing)), f"data: {spec}")
    if place:
        found = call_object(spec, "data")
        if is_datamodule(found):
            return source_of(datamodule_sets(found), f"data: {spec}")
        if isinstance(found, tuple) and len(found) == 2 and not hasattr(found[1], "ndim"):
            return Source(as_labelled(found[0]), as_labelled(found[1]))
        return Source(None, None, as_labelled(found))
    raise InputError(f"data: got {spec!r}; give {SPECS}{_meant(Path(spec))}")


def _meant(folder: Path) -> str:
    """A question about a folder that was given without its kind; empty if there is no folder."""
    if not folder.is_dir():
        return ""
    saved = any((folder / name).is_file() for name in SAVED)
    return f"; did you mean {HUGGING_FACE if saved else 'imagefolder'}:{folder}?"


def _refuse_other_part(spec: str) -> None:
    """Refuse a folder or a name on the Hub with `:validation`, or the like, at its end."""
    whole, _, part = spec.rpartition(":")
    kind, _, place = whole.partition(":")
    if not place or not part.isidentifier() or Path(f"{place}:{part}").expanduser().exists():
        return
    if kind == HUGGING_FACE or Path(place).exists():
        tests = f"{', '.join(TEST_NAMES[:-1])} or {TEST_NAMES[-1]}"
        raise InputError(f"data: {spec} ends in no known part; give {whole}:train, or {whole}:test (its {tests})")


def _open_folder(kind: str, folder: Path, seed: int, preprocessing: Preprocessing) -> Source:
    """Open a folder of images in one of the known layouts."""
    if not (folder.is_dir() or (kind == "parquet" and folder.is_file())):
        raise InputError(f"data: {folder} does not exist; give {kind}:DIR with a folder that does")
    if kind == "parquet":
        return _parquet(folder, preprocessing)
    if kind == "imagefolder":
        return _imagefolder(folder, preprocessing)
    if kind == "isic":
        return Source(*read_isic(folder, preprocessing, seed))
    return Source(*(read_cifar(folder, kind, split, preprocessing) for split in ("train", "test")))


def source_of(found: Mapping[str, LabelledSet] | LabelledSet, which: str) -> Source:
    """The train part and the test part among named ones, or a single set; `which` for errors."""
    if isinstance(found, LabelledSet):
        return Source(None, None, found)
    if len(found) == 1:
        return Source(found.get("train"), None, *found.values())
    test = next((found[name] for name in TEST_NAMES if name in found), None)
    if test is None and "train" not in found:
        raise InputError(f"{which} has the parts {list(found)}; it must have train and test")
    return Source(found.get("train"), test)


def _parquet(place: Path, preprocessing: Preprocessing) -> Source:
    if place.is_file():
        return Source(None, None, read_parquet([place], preprocessing))

    def split(*names: str) -> LabelledSet | None:
        files = next((found for name in names if (found := parquet_files(place, name))), None)
        return read_parquet(files, preprocessing) if files else None

    source = Source(split("train"), split(*TEST_NAMES))
    if source.train is None and source.test is None:
        names = sorted(path.name for path in place.glob("*"))
        raise InputError(f"data: {place} holds {names[:5]}; it must hold train and test parquet files")
    return source


def _imagefolder(place: Path, preprocessing: Preprocessing) -> Source:
    def split(*names: str) -> LabelledSet | None:
        folder = next((place / name for name in names if (place / name).is_dir()), None)
        return read_imagefolder(folder, preprocessing) if folder else None

    source = Source(split("train"), split(*TEST_NAMES))
    if source.train is None and source.test is None:
        return Source(None, None, read_imagefolder(place, preprocessing))
    return source
