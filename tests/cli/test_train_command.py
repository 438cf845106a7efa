import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from bad_inputs import refused
from PIL import Image
from safetensors.torch import load_file

from hessian_surgery.baselines.train import train as train_model
from hessian_surgery.cli.inputs import open_model
from hessian_surgery.cli.options import InputOptions
from hessian_surgery.cli.train import train as train_command
from hessian_surgery.cli.train_options import TrainOptions
from hessian_surgery.model.evaluation import predict
from hessian_surgery.model.smallnet import SmallNet
from hessian_surgery.weights.checkpoint import read_checkpoint

pytestmark = pytest.mark.usefixtures("own_folder")

DIGITS = ["train", "--data", "digits", "--model", "smallnet", "--batch-size", "32"]
INTERRUPTED = {
    "data": "digits",
    "model": "smallnet",
    "batch_size": 32,
    "epochs": 4,
    "seed": 3,
    "out": Path("stopped.safetensors"),
}


def colour_net():
    return SmallNet(2, channels=3)


def same(a, b):
    first, second = load_file(a), load_file(b)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_a_trained_net_is_a_checkpoint_to_operate_on(run, capsys, tmp_path, digits_images):
    assert run(*DIGITS, "--epochs", "12", "--loss", "ce", "--out", "net.safetensors") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("test accuracy ")
    assert "worst class" in captured.out
    assert [path.name for path in tmp_path.iterdir()] == ["net.safetensors"]
    known = {"model": "smallnet", "data": "digits", "loss": "cross-entropy", "epochs": "12", "seed": "0"}
    assert read_checkpoint(tmp_path / "net.safetensors").metadata == {"format": "pt"} | known
    last = captured.err.splitlines()[-1]
    assert last == "next: hessian-surgery operate --model smallnet --checkpoint net.safetensors --data digits"
    opened = open_model(InputOptions(model="smallnet", checkpoint=Path("net.safetensors"), data="digits", device="cpu"))
    right = predict(opened.classifier, digits_images) == digits_images.labels
    assert f"test accuracy {100 * right.double().mean():.2f} %" in captured.out


def test_one_object_and_further_training(run, capsys, tmp_path):
    assert run(*DIGITS, "--epochs", "4", "--out", "first.safetensors", "--json") == 0
    content = json.loads(capsys.readouterr().out)
    found = content["test"]
    assert content["metadata"]["epochs"] == "4"
    assert found["worst"] == min(found["per_class"]) == found["per_class"][found["classes"].index(found["weakest"])]
    assert sum(found["count"]) == 1078
    more = ["--checkpoint", "first.safetensors", "--epochs", "4", "--loss", "class-balanced"]
    assert run(*DIGITS, *more, "--out", "second.safetensors", "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert again["metadata"]["loss"] == "class-balanced"
    assert again["metadata"]["checkpoint"] == "first.safetensors"
    assert again["test"]["sigma"] < found["sigma"]


def test_an_interrupted_command_goes_on_and_writes_the_same_weights(run, capsys, tmp_path, monkeypatch):
    command = [*DIGITS, "--epochs", "4", "--seed", "3", "--out"]

    def interrupted(*arguments, progress, **options):
        def stop(done, total):
            progress(done, total)
            if done == total // 2 + 1:
                raise KeyboardInterrupt

        train_model(*arguments, progress=stop, **options)

    with (
        monkeypatch.context() as patch,
        pytest.raises(KeyboardInterrupt, match="interrupted; give the same command again"),
    ):
        patch.setattr("hessian_surgery.cli.train.train_model", interrupted)
        train_command(TrainOptions(**INTERRUPTED))
    capsys.readouterr()
    assert [path.name for path in tmp_path.iterdir()] == ["stopped.training"]
    refused(run(*command, "stopped.safetensors", "--epochs", "5"), capsys.readouterr(), "give the same ones again")
    assert run(*command, "stopped.safetensors") == 0
    shown = capsys.readouterr().err
    assert "epoch 3 of 4" in shown
    assert "epoch 2 of 4" not in shown
    assert "--seed 3" in shown
    assert run(*command, "whole.safetensors") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stopped.safetensors", "whole.safetensors"]
    assert same(tmp_path / "stopped.safetensors", tmp_path / "whole.safetensors")


@pytest.mark.full
def test_a_killed_command_goes_on_and_writes_the_same_weights(tmp_path):
    """Three processes, each of which loads torch."""
    command = [sys.executable, "-m", "hessian_surgery", *DIGITS, "--epochs", "8"]
    killed = subprocess.Popen([*command, "--out", "killed.safetensors"], stderr=subprocess.PIPE, text=True)
    while "epoch 3 of" not in killed.stderr.readline():
        pass
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert not (tmp_path / "killed.safetensors").exists()
    assert (tmp_path / "killed.training" / "training.safetensors").exists()
    done = subprocess.run([*command, "--out", "killed.safetensors"], capture_output=True, text=True, check=True)
    assert "epoch 1 of" not in done.stderr
    assert not (tmp_path / "killed.training").exists()
    subprocess.run([*command, "--out", "whole.safetensors"], capture_output=True, check=True)
    assert same(tmp_path / "killed.safetensors", tmp_path / "whole.safetensors")


def test_images_from_files_are_normalised_by_their_own_statistics(run, capsys, tmp_path):
    draw = torch.Generator().manual_seed(0)
    for part, count in (("train", 20), ("test", 6)):
        for name, red in (("ant", 60), ("bee", 180)):
            folder = tmp_path / "pictures" / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = torch.randint(-20, 20, (16, 16, 3), generator=draw) + torch.tensor([red, 100, 40])
                Image.fromarray(pixels.to(torch.uint8).numpy()).save(folder / f"{i}.png")
    inputs = ["--data", "imagefolder:pictures", "--model", "test_train_command:colour_net"]
    options = ["--epochs", "3", "--batch-size", "8", "--learning-rate", "0.02", "--out", "net.safetensors"]
    assert run("train", *inputs, *options) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("test accuracy 100.00 %, σ 0.00 pp")
    assert "not normalised" not in captured.err
    mean, std = read_checkpoint(tmp_path / "net.safetensors").normalization()
    assert mean == pytest.approx([120 / 255, 100 / 255, 40 / 255], abs=0.01)
    assert std[0] == pytest.approx(61 / 255, abs=0.01)
    assert std[1] == pytest.approx(11.5 / 255, abs=0.01)
    more = ["--checkpoint", "net.safetensors", "--no-flip", "--shift", "0", "--epochs", "1", "--batch-size", "8"]
    assert run("train", *inputs, *more, "--out", "more.safetensors") == 0
    assert read_checkpoint(tmp_path / "more.safetensors").normalization() == (mean, std)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--loss": "hinge"}, "--loss: got 'hinge'; it must be one of ce, cross-entropy, focal, class-balanced"),
        ({"--epochs": "0"}, "--epochs: got 0; it must be at least 1"),
        ({"--batch-size": "1000"}, "--batch-size: got 1000; it must be at most the number of training images (248)"),
        ({"--learning-rate": "-1"}, "--learning-rate: got -1.0; it must be a positive number"),
        ({"--shift": "-1"}, "--shift: got -1; it must be 0 or more"),
        ({"--out": "net.pt"}, "--out: got 'net.pt'; give a file whose name ends in .safetensors"),
        ({"--out": "base.safetensors"}, "--out: base.safetensors exists; give another file"),
        ({"--out": "base.safetensors/net.safetensors"}, "cannot be written"),
        ({"--data": "mnist"}, "--data: got 'mnist'"),
        ({"--data": "bad_inputs:class_missing"}, "class '3' has no sample"),
        ({"--data": "bad_inputs:colour"}, "it cannot take inputs of shape (32, 3, 8, 8)"),
        ({"--model": "vgg"}, "--model: got 'vgg'"),
        ({"--device": "tpu9"}, "--device: 'tpu9' cannot be used"),
        ({"--checkpoint": "absent.safetensors"}, "absent.safetensors is not a file"),
        ({"--calibration-data": "digits"}, "--calibration-data: train has no use for it"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_bad_input(run, capsys, tmp_path, checkpoint, change, message):
    options = {"--model": "smallnet", "--data": "digits", "--out": "net.safetensors"} | change
    refused(run("train", *[word for pair in options.items() for word in pair]), capsys.readouterr(), message)
    assert [path.name for path in tmp_path.iterdir()] == ["base.safetensors"]


def test_a_rate_too_high_is_told_and_leaves_nothing(run, capsys, tmp_path):
    code = run(*DIGITS, "--learning-rate", "1e30", "--out", "net.safetensors")
    refused(code, capsys.readouterr(), "--learning-rate: got 1e+30, and the loss in epoch 1 is", at_once=False)
    assert not list(tmp_path.iterdir())
