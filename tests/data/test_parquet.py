import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import hessian_surgery as hs
from hessian_surgery.data.images import Preprocessing
from hessian_surgery.data.readers.parquet import parquet_files, read_parquet
from hessian_surgery.data.sources import open_data


def png(colour, size=(4, 4)):
    stream = io.BytesIO()
    Image.new("RGB", size, colour).save(stream, "PNG")
    return stream.getvalue()


def write(path, encoded, labels, names=("red", "green"), struct=True):
    images = [{"bytes": e, "path": None} for e in encoded] if struct else encoded
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())]) if struct else pa.binary()
    table = pa.table({"image": pa.array(images, kind), "label": pa.array(labels, pa.int64())})
    if names:
        features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": list(names)}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path


@pytest.mark.parametrize("struct", [True, False])
def test_images_labels_and_names(tmp_path, struct):
    path = write(tmp_path / "test.parquet", [png((255, 0, 0)), png((0, 255, 0))], [0, 1], struct=struct)
    data = read_parquet([path], Preprocessing(mean=(0.5, 0.5, 0.5), std=(0.5, 0.25, 0.5)))
    assert data.classes == ("red", "green")
    assert data.labels.tolist() == [0, 1]
    inputs = data.inputs()
    assert inputs.shape == (2, 3, 4, 4)
    assert inputs[0, :, 0, 0].tolist() == [1.0, -2.0, -1.0]
    assert inputs[1, :, 3, 3].tolist() == [-1.0, 2.0, -1.0]


def test_parts_are_joined_in_order(tmp_path):
    for i in range(2):
        write(tmp_path / f"data/train-0000{i}-of-00002.parquet", [png((i, 0, 0))] * 2, [i, i], names=None)
    files = parquet_files(tmp_path, "train")
    assert len(files) == 2
    data = read_parquet(files, Preprocessing())
    assert data.labels.tolist() == [0, 0, 1, 1]
    assert data.classes == ("0", "1")
    assert parquet_files(tmp_path, "test") == []


def test_sizes(tmp_path):
    path = write(tmp_path / "test.parquet", [png((9, 9, 9)), png((9, 9, 9), (6, 5))], [0, 1])
    with pytest.raises(hs.InputError, match=r"images differ in size.*image_size=N"):
        read_parquet([path], Preprocessing()).inputs()
    assert read_parquet([path], Preprocessing(size=3)).inputs().shape == (2, 3, 3, 3)


def test_a_folder_gives_all_three_parts(tmp_path):
    for split, count in (("train", 6), ("validation", 8)):
        labels = [i % 2 for i in range(count)]
        write(tmp_path / f"{split}.parquet", [png((i, 0, 0)) for i in range(count)], labels)
    parts = open_data(f"parquet:{tmp_path}", seed=0)
    assert [len(parts.training), len(parts.calibration), len(parts.heldout)] == [6, 4, 4]
    assert not set(parts.calibration.index.tolist()) & set(parts.heldout.index.tolist())


def test_bad_files_are_named(tmp_path):
    broken = write(tmp_path / "test.parquet", [png((1, 1, 1)), b"no image"], [0, 1])
    with pytest.raises(hs.InputError, match=r"image 1 of test\.parquet cannot be read"):
        read_parquet([broken], Preprocessing()).inputs()
    text = tmp_path / "train.parquet"
    text.write_text("not parquet")
    with pytest.raises(hs.InputError, match="cannot be read as parquet"):
        read_parquet([text], Preprocessing())
    pq.write_table(pa.table({"text": ["a"], "label": [0]}), text)
    with pytest.raises(hs.InputError, match="an image column"):
        read_parquet([text], Preprocessing())
    empty = write(tmp_path / "empty.parquet", [], [])
    with pytest.raises(hs.InputError, match="is empty"):
        read_parquet([empty], Preprocessing())
    with pytest.raises(hs.InputError, match="label 5, outside the 2 classes"):
        read_parquet([write(tmp_path / "off.parquet", [png((1, 1, 1))], [5])], Preprocessing())
    with pytest.raises(hs.InputError, match=r"std: got \(1, 0, 1\)"):
        Preprocessing(std=(1, 0, 1))


ODD = {
    "labels that are texts": (
        pa.array(["a", "b"]),
        {"_type": "ClassLabel", "names": ["a", "b"]},
        "are string; give whole",
    ),
    "labels that are missing": (pa.array([0, None]), {"_type": "ClassLabel"}, "has 1 images without a label"),
    "names that are numbers": (pa.array([0, 1]), {"_type": "ClassLabel", "names": [1, 2]}, "names.0. is 1; it must be"),
    "a name instead of names": (pa.array([0, 1]), {"_type": "ClassLabel", "names": "ab"}, "names is 'ab'; it must be"),
    "a label in the billions": (pa.array([0, 3 * 10**8]), {"_type": "ClassLabel"}, "a label is 300000000"),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_labels_are_refused(tmp_path, case):
    labels, feature, words = ODD[case]
    table = pa.table({"image": pa.array([png((1, 1, 1))] * 2, pa.binary()), "label": labels})
    said = {"info": {"features": {"image": {"_type": "Image"}, "label": feature}}}
    path = tmp_path / "test.parquet"
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(said)}), path)
    with pytest.raises(hs.InputError, match=words):
        read_parquet([path], Preprocessing())


@pytest.mark.parametrize("metadata", ["[]", "no json", '{"info": null}', '{"info": {"features": [1]}}', "[" * 10**5])
def test_metadata_that_says_nothing_is_ignored(tmp_path, metadata):
    table = pa.table({"image": pa.array([png((1, 1, 1)), None], pa.binary()), "label": pa.array([0, 1])})
    path = tmp_path / "test.parquet"
    pq.write_table(table.replace_schema_metadata({"huggingface": metadata}), path)
    data = read_parquet([path], Preprocessing())
    assert data.classes == ("0", "1")
    with pytest.raises(hs.InputError, match="holds no bytes; give encoded images"):
        data.inputs()


@pytest.mark.parametrize("name", ["cifar10", "ham10000"])
def test_real_data(shared, name):
    data = read_parquet(parquet_files(shared / "data" / name, "test"), Preprocessing())
    assert len(data) == {"cifar10": 10000, "ham10000": 2051}[name]
    side = {"cifar10": 32, "ham10000": 64}[name]
    assert data.subset(torch.tensor([5, 2000])).inputs().shape == (2, 3, side, side)
