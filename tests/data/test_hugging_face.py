"""Hugging Face data sets: folders of every kind, their columns, labels and names."""

import json

import pytest
import torch
from PIL import Image

import hessian_surgery as hs
from hessian_surgery.data.images import Preprocessing
from hessian_surgery.data.readers.hugging_face import Encoding, as_set, as_sets, read_hugging_face
from hessian_surgery.data.sources import open_data, source_of
from hessian_surgery.data.texts import TextEncoder
from hugging_face_folders import needs_hf

pytestmark = needs_hf


def pad(rows):
    width = max(len(row["input_ids"]) for row in rows)
    return {"input_ids": torch.tensor([row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in rows])}


TEXTS = TextEncoder(lambda *texts: {"input_ids": [len(w) for text in texts for w in text.split()]}, pad)
ENCODING = Encoding(Preprocessing(), TEXTS)
ROWS = {"text": ["one", "two three", "four"], "label": ["b", "a", "b"]}


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def dataset(columns, **features):
    import datasets

    made = datasets.Dataset.from_dict(columns)
    for name, feature in features.items():
        made = made.cast_column(name, feature)
    return made


def write(folder, kind, rows):
    import datasets

    parts = {"train": dataset(rows), "test": dataset(rows)}
    if kind == "disk":
        datasets.DatasetDict(parts).save_to_disk(folder)
        return
    folder.mkdir()
    for name, part in parts.items():
        getattr(part, f"to_{kind}")(folder / f"{name}.{kind}")


@pytest.mark.parametrize("kind", ["disk", "csv", "json", "parquet"])
def test_folders_of_every_kind(tmp_path, kind):
    write(tmp_path / "data", kind, ROWS)
    parts = read_hugging_face(str(tmp_path / "data"), ENCODING)
    assert parts["train"].classes == ("a", "b")
    assert parts["test"].labels.tolist() == [1, 0, 1]
    assert parts["train"].inputs()["input_ids"].tolist() == [[3, 0], [3, 5], [4, 0]]
    assert parts["train"].noun == "texts"
    whole = open_data(
        f"hf:{tmp_path / 'data'}", encoding=ENCODING, calibration=f"hf:{tmp_path / 'data'}:train", needs=()
    )
    assert len(whole.training) == len(whole.calibration) == 3


def test_a_folder_of_images(tmp_path):
    for split in ("train", "test"):
        for number, name in enumerate(("ant", "bee")):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            Image.new("RGB", (4, 4), (255 * number, 0, 0)).save(tmp_path / "data" / split / name / "1.png")
    parts = read_hugging_face(str(tmp_path / "data"), ENCODING)
    assert parts["train"].classes == ("ant", "bee")
    assert parts["test"].noun == "images"
    assert parts["test"].inputs()[:, 0, 0, 0].tolist() == [0.0, 1.0]


def test_names_of_a_class_label_are_kept_and_its_column_found():
    import datasets

    made = dataset({"text": ["x", "y"], "kind": [1, 0]}, kind=datasets.ClassLabel(names=["no", "yes", "maybe"]))
    found = as_set(made, ENCODING)
    assert found.classes == ("no", "yes", "maybe")
    assert found.labels.tolist() == [1, 0]


def test_pairs_and_tokens():
    pairs = as_set(dataset({"premise": ["a b", "c"], "hypothesis": ["d", "ee"], "label": [0, 1]}), ENCODING)
    assert pairs.inputs()["input_ids"].tolist() == [[1, 1, 1], [1, 2, 0]]
    tokens = as_set(dataset({"input_ids": [[7], [8, 9]], "label": [0, 1], "text": ["a", "b"]}), ENCODING)
    assert tokens.inputs()["input_ids"].tolist() == [[7, 0], [8, 9]]


def test_names_are_those_of_all_parts_and_parts_without_labels_are_left_out():
    parts = {"train": dataset({"text": ["x"], "label": ["b"]}), "test": dataset({"text": ["y"], "label": ["a"]})}
    assert as_sets(parts, ENCODING)["train"].classes == ("a", "b")
    glue = {name: dataset({"text": ["x", "y"], "label": [0, 1]}) for name in ("train", "validation")}
    glue["test"] = dataset({"text": ["x", "y"], "label": [-1, -1]})
    found = as_sets(glue, ENCODING)
    assert list(found) == ["train", "validation"]
    assert source_of(found, "data").test is found["validation"]


def test_words_are_in_the_order_of_the_models_classes():
    own = Encoding(Preprocessing(), TEXTS, names=("c", "b", "a"))
    assert as_set(dataset(ROWS), own).classes == ("c", "b", "a")
    assert as_set(dataset(ROWS), own).labels.tolist() == [1, 2, 1]
    assert as_set(dataset(ROWS), Encoding(Preprocessing(), TEXTS, names=("b", "c"))).classes == ("a", "b")


def test_one_part_is_a_set_by_itself():
    only = as_set(dataset(ROWS), ENCODING)
    assert source_of(only, "data").single is only
    assert source_of({"train": only}, "data").part("test", "heldout_data") is only
    with pytest.raises(hs.InputError, match=r"has the parts .*must have train and test"):
        source_of({"a": only, "b": only}, "data: it")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a"], "kind": [1]}, "one must be 'label', or a ClassLabel"),
        ({"a": ["x"], "b": ["y"], "label": [1]}, "there must be one of images, or one of texts"),
        ({"size": [1.5], "label": [1]}, "there must be one of images, or one of texts"),
        ({"text": ["a"], "label": [[0, 1]]}, r"a 'label' is \[0, 1\]; give one whole number"),
        ({"text": ["a"], "label": [0.5]}, "a 'label' is 0.5; give one whole number"),
        ({"text": ["a", "b"], "label": [0, None]}, "a 'label' is None"),
        ({"text": ["a", "b"], "label": [0, -1]}, "sample 1 has label -1"),
        ({"text": ["a", "b"], "label": [0, 10**9]}, "a label is 1000000000; numbers from 100,000 on need class names"),
    ],
)
def test_what_cannot_be_used_is_named(columns, message):
    with pytest.raises(hs.InputError, match=message):
        as_set(dataset(columns), ENCODING)


def test_an_empty_set_is_refused():
    with pytest.raises(hs.InputError, match="the set is empty"):
        as_set(dataset(ROWS).select([]), ENCODING)


def test_rows_without_text_and_models_without_tokenizer():
    found = as_set(dataset({"text": ["a", None], "label": [0, 1]}), ENCODING)
    with pytest.raises(hs.InputError, match="row 1 has no 'text'"):
        found.inputs()
    with pytest.raises(hs.InputError, match="its column 'text' holds texts, and the model has no tokenizer"):
        as_set(dataset(ROWS), Encoding(Preprocessing()))


@pytest.mark.parametrize("place", ["./nowhere", "/no/such/folder", "", "someone/something", "damaged"])
def test_what_cannot_be_opened_is_one_line(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/train.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(hs.InputError, match=r"^data: [^\n]*(does not exist|cannot be opened)[^\n]*$"):
        read_hugging_face(place, ENCODING)


def test_a_script_in_a_folder_is_never_run(tmp_path):
    folder = tmp_path / "evil"
    folder.mkdir()
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (folder / "train.json").write_text(json.dumps({"text": "a", "label": 0}))
    with pytest.raises(hs.InputError, match="scripts are no longer supported"):
        read_hugging_face(str(folder), ENCODING)
    assert not (tmp_path / "ran").exists()
