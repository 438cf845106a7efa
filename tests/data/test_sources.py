import csv
import os
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

import hessian_surgery as hs
from hessian_surgery.data.images import Preprocessing
from hessian_surgery.data.readers.cifar import read_cifar
from hessian_surgery.data.readers.isic import read_isic
from hessian_surgery.data.sources import calibrates_on_training, open_data

SMALL = Preprocessing(size=4)


def picture(path, colour=(9, 9, 9), size=(4, 4)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


@pytest.fixture
def folder(tmp_path):
    """train and val, two classes, four and eight images each."""
    for split, count in (("train", 4), ("val", 8)):
        for i, name in enumerate(("bee", "ant")):
            for n in range(count):
                picture(tmp_path / split / name / f"{n}.{'png' if n % 2 else 'JPG'}", (100 * i, n, 0))
    (tmp_path / "train" / "ant" / "notes.txt").write_text("not an image")
    (tmp_path / "train" / ".hidden").mkdir()
    return tmp_path


def test_image_folder(folder):
    parts = open_data(f"imagefolder:{folder}")
    assert parts.training.classes == ("ant", "bee")
    assert [len(part) for part in (parts.training, parts.calibration, parts.heldout)] == [8, 8, 8]
    assert parts.training.inputs().shape == (8, 3, 4, 4)
    assert parts.heldout.counts.tolist() == [4, 4]
    assert (parts.training.inputs()[parts.training.labels == 0, 0] > 0.3).all()  # ants are reddish


@pytest.mark.parametrize("name", [b"caf\xe9", "né".encode() + b"\xff"])
def test_a_class_whose_name_cannot_be_written_is_refused_at_once(folder, name):
    os.mkdir(os.fsencode(folder / "train") + b"/" + name)
    with pytest.raises(hs.InputError, match="has a name that is not UTF-8; rename it"):
        open_data(f"imagefolder:{folder}")


def test_separate_parts(folder, tmp_path):
    for name in ("bee", "ant"):
        for n in range(3):
            picture(tmp_path / "more" / name / f"{n}.png")
    spec, more = f"imagefolder:{folder}", f"imagefolder:{tmp_path / 'more'}"
    parts = open_data(spec, calibration=more)
    assert [len(parts.training), len(parts.calibration), len(parts.heldout)] == [8, 6, 16]
    parts = open_data(spec, heldout=more, training=more)
    assert [len(parts.training), len(parts.calibration), len(parts.heldout)] == [6, 16, 6]
    for same in ({"heldout": spec}, {"calibration": spec}, {"calibration": more, "heldout": more}):
        with pytest.raises(hs.InputError, match="is the calibration data as well"):
            open_data(spec, **same)
    parts = open_data(None, training=spec, calibration=spec, heldout=more)
    assert [len(parts.training), len(parts.calibration), len(parts.heldout)] == [8, 16, 6]
    picture(tmp_path / "other" / "wasp" / "0.png")
    with pytest.raises(hs.InputError, match="heldout_data: its class 0 is 'wasp', but training_data's is 'ant'"):
        open_data(spec, heldout=f"imagefolder:{tmp_path / 'other'}")
    with pytest.raises(hs.InputError, match="data: missing; give it, or calibration_data and heldout_data"):
        open_data(None, training=spec)
    with pytest.raises(hs.InputError, match="is a single set, without train and test parts"):
        open_data(more)


def test_parts_that_are_not_needed_may_be_missing(folder):
    spec, own = f"imagefolder:{folder}", "test_sources:own_set"
    parts = open_data(None, training=spec, needs=("training",))
    assert [len(parts.training), len(parts.calibration), len(parts.heldout)] == [8, 0, 0]
    assert parts.heldout.classes == ("ant", "bee")
    parts = open_data(spec, calibration=spec, needs=("training", "calibration"))
    assert [len(parts.training), len(parts.calibration)] == [8, 16]
    halves = open_data(spec)
    assert open_data(spec, needs=("training",)).calibration.index.tolist() == halves.calibration.index.tolist()
    with pytest.raises(hs.InputError, match="is the calibration data as well"):
        open_data(spec, heldout=spec, needs=("training", "calibration"))
    with pytest.raises(hs.InputError, match=r"give it, or calibration_data$"):
        open_data(None, training=spec, needs=("training", "calibration"))
    with pytest.raises(hs.InputError, match=r"give it, or training_data$"):
        open_data(None, calibration=spec, needs=("training",))
    with pytest.raises(hs.InputError, match=r"is a single set, .*; give training_data$"):
        open_data(own, needs=("training",))
    (folder / "val").rename(folder / "exam")
    assert len(open_data(spec, needs=("training",)).training) == 8
    with pytest.raises(hs.InputError, match=r"has no test part; add one, or give calibration_data$"):
        open_data(spec, needs=("training", "calibration"))


def test_unreadable_images_are_named(folder):
    bad = folder / "train" / "ant" / "0.JPG"
    bad.write_bytes(b"\xff\xd8 broken")
    with pytest.raises(hs.InputError, match=r"ant/0\.JPG cannot be read as an image"):
        open_data(f"imagefolder:{folder}").training.inputs()
    truncated = folder / "val" / "bee" / "1.png"
    truncated.write_bytes(truncated.read_bytes()[:40])
    with pytest.raises(hs.InputError, match=r"bee/1\.png cannot be read"):
        parts = open_data(f"imagefolder:{folder}")
        parts.calibration.inputs(), parts.heldout.inputs()


def test_shapes_that_differ_between_chunks(folder):
    data = open_data(f"imagefolder:{folder}").training
    mixed = hs.LabelledSet(
        lambda p: torch.zeros(len(p), 3, 4 + int(p[0] > 0), 4),
        torch.zeros(600, dtype=torch.long),
        ("a",),
        torch.arange(600),
    )
    assert data.resident().inputs().shape[0] == 8
    with pytest.raises(hs.InputError, match="batches differ in shape; pad or resize all samples"):
        mixed.resident()


@pytest.fixture(params=["cifar10", "cifar100"])
def archive(request, tmp_path):
    """The layout of the original archives, pickled as they are, with a few images."""
    kind = request.param
    rng = np.random.default_rng(0)
    key = b"labels" if kind == "cifar10" else b"fine_labels"
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"] if kind == "cifar10" else ["train", "test"]
    folder = tmp_path / "inner"
    folder.mkdir()
    for name in names:
        batch = {b"data": rng.integers(0, 256, (6, 3072), dtype=np.uint8), key: [0, 1, 2] * 2, b"filenames": [b"x"] * 6}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    meta = {b"label_names" if kind == "cifar10" else b"fine_label_names": [b"cat", b"dog", b"owl"]}
    (folder / ("batches.meta" if kind == "cifar10" else "meta")).write_bytes(pickle.dumps(meta, protocol=2))
    return kind, tmp_path


def test_original_cifar_files(archive):
    kind, folder = archive
    parts = open_data(f"{kind}:{folder}")
    assert len(parts.training) == (30 if kind == "cifar10" else 6)
    assert parts.heldout.classes == ("cat", "dog", "owl")
    raw = pickle.loads((folder / "inner" / ("test_batch" if kind == "cifar10" else "test")).read_bytes())
    first = read_cifar(folder, kind, "test", Preprocessing()).inputs()[0]
    assert torch.allclose(first.reshape(-1) * 255, torch.from_numpy(raw[b"data"][0]).float())


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_a_cifar_file_that_holds_code_is_refused_and_never_run(archive, tmp_path):
    kind, folder = archive
    target = tmp_path / "ran"
    name = "test_batch" if kind == "cifar10" else "test"
    (folder / "inner" / name).write_bytes(pickle.dumps({b"data": Evil(str(target))}, protocol=2))
    with pytest.raises(hs.InputError, match=r"asks for (io|_io|__builtin__)\.open.*: refused"):
        open_data(f"{kind}:{folder}")
    assert not target.exists()
    for array in (np.zeros(4), np.zeros(4, object), np.asfortranarray(np.zeros((6, 3072), np.uint8))):
        (folder / "inner" / name).write_bytes(pickle.dumps({b"data": array}, protocol=2))
        with pytest.raises(hs.InputError, match="refused"):
            open_data(f"{kind}:{folder}")
    for content in ({b"data": np.zeros(3, np.uint8)}, {b"labels": [1], b"fine_labels": [1]}):
        (folder / "inner" / name).write_bytes(pickle.dumps(content, protocol=2))
        with pytest.raises(hs.InputError, match="does not hold"):
            open_data(f"{kind}:{folder}")
    (folder / "inner" / name).write_bytes(b"garbage")
    with pytest.raises(hs.InputError, match="cannot be read as a CIFAR file"):
        open_data(f"{kind}:{folder}")
    (folder / "inner" / name).write_bytes(pickle.dumps([1], protocol=2))
    with pytest.raises(hs.InputError, match="holds a list"):
        open_data(f"{kind}:{folder}")


NAMES = ["MEL", "NV", "UNK"]


def isic_table(path, rows, header=("image", *NAMES)):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


@pytest.fixture
def isic(tmp_path):
    rows = [(f"ISIC_{i:03d}", float(i % 3 == 0), float(i % 3 != 0), 0.0) for i in range(48)]
    isic_table(tmp_path / "ISIC_2019_Training_GroundTruth.csv", rows)
    for name, *_ in rows:
        picture(tmp_path / "ISIC_2019_Training_Input" / f"{name}.jpg", size=(6, 5))
    with (tmp_path / "ISIC_2019_Training_Metadata.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("image", "lesion_id"), *((name, f"L{i // 4}") for i, (name, *_) in enumerate(rows))]
        )
    return tmp_path


def test_isic_is_split_by_lesion(isic):
    train, test = read_isic(isic, SMALL, seed=0)
    assert train.classes == ("MEL", "NV")  # nobody is UNK
    assert len(train) + len(test) == 48
    assert len(test) == 12
    parts = open_data(f"isic:{isic}", preprocessing=SMALL)
    assert parts.training.inputs().shape == (36, 3, 4, 4)
    assert (train.labels == 0).sum() + (test.labels == 0).sum() == 16


def test_calibration_images_may_be_training_images_if_one_says_so(isic):
    """Section 9.2: at most so many of each class, of the training images."""
    spec = f"isic:{isic}"
    parts = open_data(spec, preprocessing=SMALL, calibration=f"{spec}:train")
    assert torch.equal(parts.calibration.index, parts.training.index)
    assert [len(parts.training), len(parts.calibration), len(parts.heldout)] == [36, 36, 12]
    assert hs.cap_per_class(parts.calibration, 5).counts.tolist() == [5, 5]
    assert len(open_data("digits", calibration="digits:train").calibration) == 248
    for halves in ({"calibration": f"{spec}:test"}, {"calibration": f"{spec}:test", "heldout": spec}):
        with pytest.raises(hs.InputError, match="is the calibration data as well"):
            open_data(spec, preprocessing=SMALL, **halves)
    with pytest.raises(hs.InputError, match="is a single set"):
        open_data(f"{spec}:train", preprocessing=SMALL)


@pytest.mark.parametrize(
    ("data", "training", "calibration", "on_training"),
    [
        ("isic:D", None, "isic:D:train", True),
        ("isic:E", "isic:D", "isic:D:train", True),
        ("isic:E", "isic:D:train", "isic:D:train", True),
        ("digits", None, "digits:train", True),
        ("isic:D", None, "isic:E:train", False),
        ("isic:D", None, "isic:D:test", False),
        ("isic:D", None, None, False),
        ("imagefolder:train", None, "imagefolder:train", False),
        ("package.module:train", None, "package.module:train", False),
    ],
)
def test_who_calibrates_on_training_images(data, training, calibration, on_training):
    assert calibrates_on_training(data, training, calibration) == on_training


def test_isic_with_a_test_table(isic):
    header = ("image", *NAMES, "score_weight", "validation_weight")
    rows = [("ISIC_T", 1.0, 0.0, 0.0, 0.5, 0.5), ("ISIC_U", 0.0, 0.0, 1.0, 0.5, 0.5)]
    isic_table(isic / "ISIC_2019_Test_GroundTruth.csv", rows, header)
    for name in ("ISIC_T", "ISIC_U"):
        picture(isic / "ISIC_2019_Test_Input" / f"{name}.jpg")
    train, test = read_isic(isic, SMALL, seed=0)
    assert (len(train), len(test)) == (48, 1)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("ISIC_000", 1.0, 1.0, 0.0)], "line 2: give 'image' and one diagnosis that is 1"),
        ([("ISIC_000", "yes", 0.0, 0.0)], "line 2: a diagnosis is not a number"),
        ([("ISIC_999", 1.0, 0.0, 0.0)] * 1, "has a diagnosis of ISIC_999 but no such image"),
        ([("ISIC_000", 1.0, 0.0, 0.0)] * 2, "line 3: 'ISIC_000' has a line already"),
        ([("ISIC_000", "nan", 1.0, 0.0)], "line 2: give 'image' and one diagnosis that is 1"),
        ([("ISIC_000", 1.0, 0.0, 0.0, 7)], "line 2: a diagnosis is not a number"),
        ([("x" * 200_000, 1.0, 0.0, 0.0)], "cannot be read as a table: field larger"),
        ([("ISIC_000", 1.0, 0.0, 0.0)], "leaves no image for one of its parts"),
        ([], "has no rows"),
    ],
)
def test_bad_isic_tables_are_named(isic, rows, message):
    isic_table(isic / "ISIC_2019_Training_GroundTruth.csv", rows)
    with pytest.raises(hs.InputError, match=message):
        open_data(f"isic:{isic}", preprocessing=SMALL)


def own_pair():
    x = torch.tensor(np.random.default_rng(0).normal(size=(40, 2)))
    return (x, torch.arange(40) % 2), (x + 1, torch.arange(40) % 2)


def own_set():
    return torch.zeros(10, 2), torch.arange(10) % 2


def test_data_by_import_path():
    parts = open_data("test_sources:own_pair")
    assert [len(parts.training), len(parts.calibration)] == [40, 20]
    assert len(open_data("test_sources:own_pair", heldout="test_sources:own_set").heldout) == 10


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mnist", "give digits, hf:DIR, parquet:DIR"),
        ("parquet:/nowhere", "/nowhere does not exist; give parquet:DIR"),
        ("imagefolder:", "holds no image"),
        ("nowhere.at:all", "cannot be imported"),
        ("os:getcwd", "got str"),
        ("os:sep", "it must be a function"),
        ("cifar10:.", r"holds no batches\.meta"),
        ("isic:.", r"must hold one \*Training_GroundTruth\.csv; found 0"),
        ("imagefolder:.", "holds no image"),
        ("parquet:.", "must hold train and test parquet files"),
    ],
)
def test_bad_specs_are_named(spec, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(hs.InputError, match=message):
        open_data(spec)


@pytest.mark.parametrize(
    ("name", "kind"), [("dataset_dict.json", "hf"), ("state.json", "hf"), ("a.txt", "imagefolder")]
)
def test_a_folder_without_its_kind_is_asked_about(name, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clean").mkdir()
    (tmp_path / "clean" / name).write_text("{}")
    with pytest.raises(hs.InputError, match=rf"^data: got 'clean'; .*; did you mean {kind}:clean\?$"):
        open_data("clean")


@pytest.mark.parametrize("kind", ["hf", "imagefolder"])
def test_another_part_than_train_and_test_is_refused_and_the_argument_named(kind, folder):
    spec = f"{kind}:{folder}"
    known = (
        rf"{spec}:validation ends in no known part; give {spec}:train, or {spec}:test \(its test, validation, val or"
    )
    with pytest.raises(hs.InputError, match=f"^data: {known}"):
        open_data(f"{spec}:validation")
    with pytest.raises(hs.InputError, match=f"^calibration_data: {known}"):
        open_data(f"imagefolder:{folder}", calibration=f"{spec}:validation")


def test_the_argument_that_was_given_is_named(folder):
    spec = f"imagefolder:{folder}"
    with pytest.raises(hs.InputError, match=r"^heldout_data: /nowhere does not exist; give imagefolder:DIR"):
        open_data(spec, heldout="imagefolder:/nowhere")
    with pytest.raises(hs.InputError, match=r"^training_data: got 'mnist'; give digits"):
        open_data(spec, training="mnist")


def test_all_of_the_test_part_decides_if_it_is_not_halved(digits_parts):
    parts = open_data("digits", needs=("training", "calibration"), halve=False)
    assert len(parts.calibration) == len(digits_parts.calibration) + len(digits_parts.heldout)
    assert len(parts.heldout) == 0
    assert parts.heldout.classes == digits_parts.heldout.classes
