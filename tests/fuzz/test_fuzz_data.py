"""Damaged data and checkpoints: every reader accepts them, or says in one line what is wrong."""

import io
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from mutate import VALUES, damaged, fuzz, put, survives, times
from PIL import Image
from safetensors.torch import save
from torch import nn

import hessian_surgery as hs
from hessian_surgery.data.images import Preprocessing
from hessian_surgery.data.readers.cifar import read_cifar
from hessian_surgery.data.sources import open_source
from hessian_surgery.weights.apply_patch import apply_patch
from hessian_surgery.weights.checkpoint import load_weights, read_checkpoint
from hessian_surgery.weights.patch import make_patch

SMALL = Preprocessing(size=4)
WEIGHTS = {"weight": torch.ones(3, 2), "bias": torch.zeros(3, dtype=torch.float16)}


def encoded(kind: str) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (6, 5), (9, 200, 30)).save(stream, kind)
    return stream.getvalue()


def saved(**options) -> bytes:
    stream = io.BytesIO()
    torch.save({"state_dict": WEIGHTS, "epoch": 3}, stream, **options)
    return stream.getvalue()


CHECKPOINTS = {
    "a.safetensors": save(WEIGHTS, {"normalize_mean": "0.5,0.5,0.5", "normalize_std": "1,1,1"}),
    "a.pt": saved(),
    "a.pth": saved(_use_new_zipfile_serialization=False),
}


@times()
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints(tmp_path, total, name):
    def read(path):
        checkpoint = read_checkpoint(path)
        checkpoint.normalization()
        load_weights(nn.Linear(2, 3), checkpoint)

    read(put(tmp_path / name, CHECKPOINTS[name]))
    fuzz(total, lambda draw: survives(read, put(tmp_path / name, damaged(CHECKPOINTS[name], draw))))


def test_a_patch_is_applied_to_damaged_files(tmp_path):
    patch = make_patch(WEIGHTS, WEIGHTS | {"weight": torch.zeros(3, 2)})
    patch.save(tmp_path / "patch.safetensors")

    def attack(draw):
        name = draw.choice(["a.pt", "a.pth"])
        (tmp_path / "out.pt").unlink(missing_ok=True)
        survives(apply_patch, put(tmp_path / name, damaged(CHECKPOINTS[name], draw)), tmp_path / "patch.safetensors",
                 tmp_path / "out.pt")  # fmt: skip

    fuzz(500, attack)


@times()
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "TIFF", "WEBP"])
def test_images(total, kind):
    content = encoded(kind)
    SMALL.decode(content, "an image")
    fuzz(total // 5, lambda draw: survives(SMALL.decode, damaged(content, draw), "an image"))


def read_all(spec: str) -> None:
    """Open all parts of a source and read them."""
    source = open_source(spec, 0, SMALL)
    for part in (source.train, source.test, source.single):
        if part is not None:
            part.inputs()


@times()
def test_parquet(tmp_path, total):
    table = pa.table({"image": pa.array([encoded("PNG")] * 4, pa.binary()), "label": pa.array([0, 1, 0, 1])})
    said = (
        b'{"info": {"features": {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["a", "b"]}}}}'
    )

    def written(metadata: bytes) -> bytes:
        stream = io.BytesIO()
        pq.write_table(table.replace_schema_metadata({b"huggingface": metadata}), stream)
        return stream.getvalue()

    whole = written(said)

    def attack(draw):
        content = damaged(whole, draw) if draw.random() < 0.7 else written(damaged(said, draw))
        survives(read_all, f"parquet:{put(tmp_path / 'a.parquet', content)}")

    fuzz(total, attack)


@times()
def test_isic(tmp_path, total):
    for i in range(8):
        put(tmp_path / f"i{i}.png", encoded("PNG"))
    truth = "image,MEL,NV,UNK\n" + "".join(f"i{i},{i % 2}.0,{1 - i % 2}.0,0.0\n" for i in range(8))
    lesions = "image,age,lesion_id\n" + "".join(f"i{i},{i},l{i // 2}\n" for i in range(8))
    files = {"a_Training_GroundTruth.csv": truth.encode(), "a_Training_Metadata.csv": lesions.encode()}

    def attack(draw):
        for name, content in files.items():
            put(tmp_path / name, damaged(content, draw) if draw.random() < 0.7 else content)
        survives(open_source, f"isic:{tmp_path}", 0, SMALL)

    fuzz(total, attack)


@times()
def test_cifar(tmp_path, total):
    def whole():
        rng = np.random.default_rng(0)
        batch = {
            b"data": rng.integers(0, 256, (2, 3072), dtype=np.uint8),
            b"fine_labels": [0, 1],
            b"filenames": [b"x"] * 2,
        }
        return {
            name: pickle.dumps(content, protocol=2)
            for name, content in (("train", batch), ("test", batch), ("meta", {b"fine_label_names": [b"a", b"b"]}))
        }

    files = whole()

    def attack(draw):
        victim = draw.choice(list(files))
        for name, content in files.items():
            # Most of a batch are pixels, which may be anything.
            hurt = content
            if name == victim:
                place = content.find(b"fine_labels") if draw.random() < 0.5 else 0
                hurt = content[:place] + damaged(content[place:], draw)
            put(tmp_path / name, hurt)
        survives(read_cifar, tmp_path, "cifar100", draw.choice(["train", "test"]), SMALL)

    for name, content in files.items():
        put(tmp_path / name, content)
    read_all(f"cifar100:{tmp_path}")
    fuzz(total, attack)


@times()
def test_data_from_a_caller(total):
    """Pairs, datasets and labels of any kind."""
    tensors = (
        torch.zeros(4, 2),
        torch.arange(4),
        torch.tensor(3),
        torch.zeros(4),
        torch.full((4,), 2**40),
        torch.ones(0),
    )
    values = (
        *VALUES,
        *tensors,
        [(torch.zeros(2), 0)],
        [{"label": 1, "x": torch.ones(2)}],
        [(1, "a")],
        np.zeros((4, 2)),
    )

    def attack(draw):
        data = draw.choice([(draw.choice(values), draw.choice(values)), draw.choice(values)])
        survives(lambda: hs.as_labelled(data, draw.choice([None, None, ("a", "b"), ()])).inputs())

    fuzz(total, attack)


def test_folders_that_are_none(tmp_path):
    put(tmp_path / "file", b"")
    for kind in ("parquet", "imagefolder", "cifar10", "cifar100", "isic"):
        for place in (tmp_path / "file", tmp_path, "\0", "x" * 5000, "\udcff"):
            assert not survives(read_all, f"{kind}:{place}")
