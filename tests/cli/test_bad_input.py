"""Bad input through the command line: exit code 2, one clear line, no traceback, no file left."""

import pickle
import resource
import subprocess
import sys

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import IterableDataset

from hessian_surgery.data.readers.digits import digits
from hessian_surgery.model.smallnet import SmallNet

pytestmark = pytest.mark.usefixtures("own_folder")


def pair_with(change):
    """The digits task, its test part changed."""
    task = digits(0)
    return (task.train.inputs(), task.train.labels), change(task.test.inputs(), task.test.labels)


def labels_beyond():
    return pair_with(lambda x, y: (x, torch.where(y == 3, -1, y)))


def class_missing():
    return pair_with(lambda x, y: (x[y != 3], y[y != 3]))


def empty_set():
    return pair_with(lambda x, y: (x[:0], y[:0]))


def nan_images():
    task = digits(0)
    return (task.train.inputs() * float("nan"), task.train.labels), (task.test.inputs(), task.test.labels)


def float_labels():
    return pair_with(lambda x, y: (x, y.float()))


def fewer_labels():
    return pair_with(lambda x, y: (x, y[:-1]))


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(1), 0


def stream():
    return Stream(), Stream()


class Dice(SmallNet):
    def forward(self, x):
        return super().forward(x) + torch.rand(len(x), 10)


class Broken(SmallNet):
    def forward(self, x):
        return super().forward(x) * float("nan")


class Features(SmallNet):
    def forward(self, x):
        return self.features(x)[:, 0]


def dice():
    return Dice(10)


def broken():
    return Broken(10)


def features():
    return Features(10)


def half_model():
    return SmallNet(10).bfloat16()


def frozen():
    return SmallNet(10).requires_grad_(False)


def needs_arguments(classes):
    return SmallNet(classes)


def nan_late():
    def spoil(x, y):
        x = x.clone()
        x[700] = float("nan")
        return x, y

    return pair_with(spoil)


def colour():
    return pair_with(lambda x, y: (x.expand(-1, 3, -1, -1), y))


def own_weights():
    return SmallNet(10)


def not_a_model():
    return "a string"


MINE = "test_bad_input"
OPTIONS = [
    ({"--model": "vgg"}, "model: got 'vgg'"),
    ({"--model": "resnet18"}, "lacks"),
    ({"--model": "smallnet", "--checkpoint": None}, "has no weights of its own"),
    ({"--model": f"{MINE}:absent"}, "is not built in and cannot be imported"),
    ({"--model": f"{MINE}:not_a_model"}, "must return a torch.nn.Module"),
    ({"--model": f"{MINE}:dice", "--checkpoint": None}, "two identical passes in evaluation mode differ"),
    ({"--model": f"{MINE}:broken", "--checkpoint": None}, "logits are not finite"),
    ({"--model": f"{MINE}:features", "--checkpoint": None}, "not logits of shape (batch, classes)"),
    ({"--model": f"{MINE}:half_model", "--checkpoint": None}, "held in half precision"),
    ({"--model": f"{MINE}:frozen", "--checkpoint": None}, "no trainable parameter matches"),
    ({"--model": f"{MINE}:needs_arguments"}, "must be callable without arguments"),
    ({"--data": f"{MINE}:nan_late"}, "logits are not finite on image 700"),
    ({"--data": f"{MINE}:colour"}, "it cannot take inputs of shape (32, 3, 8, 8)"),
    ({"--data": "imagefolder:base.safetensors"}, "does not exist"),
    ({"--data": "digits", "--heldout-data": "digits"}, "is the calibration data as well"),
    ({"--out": "."}, "holds other files, such as base.safetensors"),
    ({"--checkpoint": "absent.safetensors"}, "absent.safetensors is not a file"),
    ({"--data": None}, "data: missing; give --data"),
    ({"--data": "mnist"}, "data: got 'mnist'"),
    ({"--data": "parquet:."}, "must hold train and test parquet files"),
    ({"--data": "imagefolder:nowhere"}, "nowhere does not exist"),
    ({"--data": f"{MINE}:labels_beyond"}, "label -1, outside the"),
    ({"--data": f"{MINE}:class_missing"}, "class '3' has no image"),
    ({"--data": f"{MINE}:empty_set"}, "the set is empty"),
    ({"--data": f"{MINE}:nan_images"}, "training_data: the gradient of class '0' is not finite; check its images"),
    ({"--data": f"{MINE}:nan_images", "--preset": "loop"}, "the loss on the batch is nan"),
    ({"--target": "3=0.9999"}, "target: cannot be reached within the limits by a first step. At best, on images not"),
    ({"--target": "3=1.5"}, "target: got 3=1.5; give an accuracy as a fraction"),
    ({"--target": "3=high"}, "target: got 'high', which is not a number"),
    ({"--target": "=0.5"}, "target: got '=0.5'; give sigma, worst, or accuracies such as cat=0.8,dog=0.75"),
    ({"--target": "cat=0.8"}, "target: got 'cat', which is no class; there are 0, 1, 2"),
    ({"--target": "best"}, "target: got 'best'; it must be one of sigma, worst"),
    ({"--protect": "3,cat"}, "protect: got 'cat', which is no class"),
    ({"--budget": "2"}, "budget: got 2.0; it must be a fraction between 0 and 1"),
    ({"--max-drop": "-1"}, "max_drop: got -1.0; it must be a fraction between 0 and 1"),
    ({"--directions": "north"}, "directions: got 'north'; it must be one of class-gradients, spikes, both"),
    (
        {"--hessian-samples": "64"},
        "hessian_samples: got 64, but it is of spikes; give --directions spikes",
    ),
    ({"--amplitude": "0.1"}, "amplitude: got 0.1, but it is of the loop; give --preset loop"),
    ({"--directions": "both", "--phases": "2"}, "phases: got 2, but it is of the loop; give --preset loop"),
    ({"--preset": "loop", "--budget": "0.01"}, "budget: got 0.01, but the loop has no use for it; leave out --preset"),
    ({"--preset": "paper", "--protect": "3"}, "protect: got ('3',); it must be left out: the loop has no use for it"),
    (
        {"--preset": "loop", "--target": "3=0.9"},
        "target: got {'3': 0.9}; it must be left out: the loop has no use for it",
    ),
    ({"--data": f"{MINE}:float_labels"}, "whole numbers"),
    ({"--data": f"{MINE}:fewer_labels"}, "give one label per input"),
    ({"--data": f"{MINE}:stream"}, "iterable dataset cannot be split"),
    ({"--preset": "nature"}, "preset: got 'nature'"),
    ({"--preset": "paper:imagenet"}, "dataset: got 'imagenet'"),
    ({"--exponent": "many"}, "exponent: got 'many', which is not a number"),
    ({"--iterations": "0"}, "iterations: got 0"),
    ({"--amplitude": "-1"}, "amplitude: got -1"),
    ({"--control": "sgd"}, "one of adam, gamma"),
    ({"--sensitivity": "guess"}, "one of gradients, differences"),
    ({"--device": "tpu9"}, "device: 'tpu9' cannot be used"),
    ({"--parameters": "nothing.*"}, "no trainable parameter matches"),
    ({"--spikes": "9", "--lanczos-steps": "4"}, "at least as many as spikes"),
    ({"--spikes": "10000"}, "spikes: got 10000"),
    ({"--mean": "1,2", "--std": "1,1,1"}, "mean: got (1.0, 2.0); give three numbers"),
    ({"--mean": "0,0,0", "--std": "a,b,c"}, "std: got 'a', which is not a number"),
    ({"--mean": "0,0,0"}, "--mean and --std go together"),
    ({"--mean": "125,122,114", "--std": "63,62,66"}, "divide it by 255"),
    ({"--model": "smallnet", "--data": "folder:photos"}, "is not built in"),
    ({"--out": "base.safetensors/run"}, "cannot be written"),
]


def refused(code, captured, message):
    assert code == 2, captured.err
    assert captured.out == ""
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert len(captured.err.splitlines()) <= 3


@pytest.mark.parametrize(("change", "message"), OPTIONS, ids=[message[:40] for _, message in OPTIONS])
def test_options(run, capsys, tmp_path, checkpoint, change, message):
    options = {"--model": "smallnet", "--checkpoint": checkpoint, "--data": "digits", "--out": "run"} | change
    arguments = [word for pair in options.items() if pair[1] is not None for word in pair]
    refused(run("operate", *arguments), capsys.readouterr(), message)
    assert [path.name for path in tmp_path.iterdir()] == ["base.safetensors"]


def test_a_test_part_that_is_missing(run, capsys, tmp_path, pictures):
    (pictures / "test").rename(pictures / "exam")
    code = run("operate", "--model", f"{MINE}:two_classes", "--data", f"imagefolder:{pictures}", "--out", "run")
    refused(code, capsys.readouterr(), "pictures has no test part; add one")
    code = run("operate", "--model", f"{MINE}:two_classes", "--data", str(pictures), "--out", "run")
    refused(code, capsys.readouterr(), "did you mean imagefolder:")


class Evil:
    def __reduce__(self):
        return (open, ("ran", "w"))


def truncated(path, weights):
    save_file(weights, path.with_suffix(".safetensors"))
    content = path.with_suffix(".safetensors").read_bytes()
    path.with_suffix(".safetensors").write_bytes(content[: len(content) // 2])
    return path.with_suffix(".safetensors")


def truncated_torch(path, weights):
    torch.save(weights, path)
    path.write_bytes(path.read_bytes()[:200])
    return path


def empty_file(path, weights):
    path.write_bytes(b"")
    return path


def old_format_cut(path, weights):
    torch.save(weights, path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:-100])
    return path


def odd_normalization(path, weights):
    save_file(weights, path.with_suffix(".safetensors"), {"normalize_mean": "grey", "normalize_std": "1,1,1"})
    return path.with_suffix(".safetensors")


def holding_code(path, weights):
    torch.save({"state_dict": weights, "evil": Evil()}, path)
    return path


def pickled(path, weights):
    path.write_bytes(pickle.dumps(Evil()))
    return path


def whole_module(path, weights):
    torch.save(nn.Linear(2, 2), path)
    return path


def other_shapes(path, weights):
    torch.save(weights | {"features.0.weight": torch.zeros(2, 2)}, path)
    return path


def with_nan(path, weights):
    torch.save(weights | {"fc.bias": torch.full((10,), float("nan"))}, path)
    return path


def too_few_outputs(path, weights):
    torch.save(weights | {"fc.weight": weights["fc.weight"][:7], "fc.bias": weights["fc.bias"][:7]}, path)
    return path


def wider(path, weights):
    torch.save(weights | {"fc.bias": weights["fc.bias"].double()}, path)
    return path


FILES = [
    (truncated, "cannot be read, it may be truncated"),
    (truncated_torch, "cannot be read, it may be truncated"),
    (empty_file, "cannot be read, it may be truncated"),
    (old_format_cut, "cannot be read, it may be truncated"),
    (odd_normalization, "they must be numbers"),
    (holding_code, "could run code: refused"),
    (pickled, "could run code: refused"),
    (whole_module, "could run code: refused"),
    (other_shapes, "has shape (2, 2)"),
    (with_nan, "holds NaN"),
    (too_few_outputs, "7 logits, but the data has 10 classes"),
    (wider, "does not fit into the model's torch.float32"),
]


@pytest.mark.parametrize(("spoil", "message"), FILES, ids=[spoil.__name__ for spoil, _ in FILES])
def test_checkpoints(run, capsys, tmp_path, checkpoint, spoil, message):
    path = spoil(tmp_path / "bad.pt", load_file(checkpoint))
    code = run("operate", "--model", "smallnet", "--checkpoint", str(path), "--data", "digits", "--out", "run")
    refused(code, capsys.readouterr(), message)
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def pictures(tmp_path):
    for split in ("train", "test"):
        for name in ("ant", "bee"):
            for n in range(4):
                path = tmp_path / "pictures" / split / name / f"{n}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (8, 8), (n, n, n)).save(path)
    return tmp_path / "pictures"


def two_classes():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 2))


@pytest.mark.parametrize("fault", ["unreadable", "other size", "no images"])
def test_image_folders(run, capsys, tmp_path, pictures, fault):
    victim = pictures / "test" / "bee" / "2.png"
    if fault == "unreadable":
        victim.write_bytes(b"no image")
    elif fault == "other size":
        Image.new("RGB", (9, 8)).save(victim)
    else:
        for path in (pictures / "test" / "bee").iterdir():
            path.unlink()
    code = run("operate", "--model", f"{MINE}:two_classes", "--data", f"imagefolder:{pictures}", "--out", "run")
    messages = {
        "unreadable": "test/bee/2.png cannot be read as an image",
        "other size": "give --image-size",
        "no images": "class 'bee' has no image",
    }
    refused(code, capsys.readouterr(), messages[fault])
    assert not (tmp_path / "run").exists()


def test_folders_of_other_runs(run, capsys, tmp_path, checkpoint):
    arguments = ["operate", "--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits", "--out", "run"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "history.jsonl").write_text("")
    refused(run(*arguments), capsys.readouterr(), "holds an unfinished run; give --resume")
    (tmp_path / "run" / "result.json").write_text("{}")
    refused(run(*arguments), capsys.readouterr(), "holds a finished run")
    refused(run("demo", "--out", "run"), capsys.readouterr(), "something other than a demo")
    refused(run("report", "nowhere"), capsys.readouterr(), "holds no finished run")


def test_patches_for_other_files(run, capsys, tmp_path, checkpoint):
    (tmp_path / "patch.safetensors").write_text("not a patch")
    code = run("apply", checkpoint, "patch.safetensors", "--out", "out.safetensors")
    refused(code, capsys.readouterr(), "patch: patch.safetensors cannot be read")
    code = run("revert", checkpoint, checkpoint, "--out", "out.safetensors")
    refused(code, capsys.readouterr(), "is not a patch of this program")
    assert not (tmp_path / "out.safetensors").exists()


def test_a_full_disk(tmp_path, checkpoint):
    """Files may not grow beyond 20 kB: the state after the first iteration does not fit."""
    command = [sys.executable, "-m", "hessian_surgery", "operate", "--model", "smallnet", "--checkpoint", checkpoint]
    done = subprocess.run(
        [*command, "--data", "digits", "--out", "run", "--iterations", "2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )
    assert done.returncode == 2, done.stderr
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "run").rglob("*.tmp"))
