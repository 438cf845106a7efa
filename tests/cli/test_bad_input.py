"""Bad options: exit code 2, one clear line, no traceback, no file left."""

import pytest
from bad_inputs import refused

pytestmark = pytest.mark.usefixtures("own_folder")

MINE = "bad_inputs"
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
    ({"--data": f"{MINE}:colour"}, "it cannot take inputs of shape (32, 3, 8, 8)"),
    ({"--data": "imagefolder:base.safetensors"}, "does not exist"),
    ({"--data": "digits", "--heldout-data": "digits"}, "is the calibration data as well"),
    ({"--out": "."}, "holds other files, such as base.safetensors"),
    ({"--checkpoint": "absent.safetensors"}, "absent.safetensors is not a file"),
    ({"--data": None}, "--data: missing; give it, or --training-data"),
    ({"--data": "mnist"}, "data: got 'mnist'"),
    ({"--data": "parquet:."}, "must hold train and test parquet files"),
    ({"--data": "imagefolder:nowhere"}, "nowhere does not exist"),
    ({"--data": f"{MINE}:labels_beyond"}, "label -1, outside the"),
    ({"--data": f"{MINE}:class_missing"}, "class '3' has no sample"),
    ({"--data": f"{MINE}:empty_set"}, "the set is empty"),
    ({"--target": "3=1.5"}, "target: got 1.5; write 1.5% or 0.015"),
    ({"--target": "3=high"}, "target: got 'high', which is not a number"),
    ({"--target": "=0.5"}, "target: got '=0.5'; give sigma, worst, or accuracies such as cat=0.8,dog=75%"),
    ({"--target": "cat=0.8"}, "target: got 'cat', which is no class; there are 0, 1, 2"),
    ({"--target": "best"}, "target: got 'best'; it must be one of sigma, worst"),
    ({"--protect": "3,cat"}, "protect: got 'cat', which is no class"),
    ({"--budget": "0.5"}, "budget: got 0.5; that is 50 pp; write 50pp if you mean it, or 0.5pp"),
    ({"--budget": "200%"}, "budget: got 2.0; it must be a fraction between 0 and 1"),
    ({"--budget": "little"}, "budget: got 'little', which is not a number"),
    ({"--max-drop": "0.2"}, "--max-drop: got 0.2; that is 20 pp; write 20pp if you mean it, or 0.2pp"),
    ({"--max-drop": "-1pp"}, "--max-drop: got -0.01; it must be a fraction between 0 and 1"),
    ({"--directions": "north"}, "directions: got 'north'; it must be one of refit, class-gradients, spikes"),
    ({"--hessian-samples": "64"}, "--hessian-samples: got 64, but it is about spikes; give --directions spikes"),
    ({"--amplitude": "0.1"}, "amplitude: got 0.1, but it belongs to the loop; give --preset loop"),
    ({"--directions": "both", "--phases": "2"}, "phases: got 2, but it belongs to the loop; give --preset loop"),
    (
        {"--preset": "loop", "--budget": "0.01"},
        "budget: got '0.01', but the loop has no use for it; leave out",
    ),
    ({"--preset": "paper", "--protect": "3"}, "protect: got '3', but the loop has no use for it; leave out --preset"),
    ({"--preset": "loop", "--target": "3=0.9"}, "target: got '3=0.9', but the loop takes sigma or worst; leave out"),
    ({"--data": f"{MINE}:float_labels"}, "whole numbers"),
    ({"--data": f"{MINE}:fewer_labels"}, "give one label per input"),
    ({"--data": f"{MINE}:stream"}, "iterable dataset cannot be split"),
    ({"--preset": "nature"}, "preset: got 'nature'"),
    ({"--preset": "paper:imagenet"}, "dataset: got 'imagenet'"),
    ({"--exponent": "many"}, "exponent: got 'many', which is not a number"),
    ({"--iterations": "0"}, "iterations: got 0"),
    ({"--preset": "loop", "--amplitude": "-1"}, "amplitude: got -1.0; it must be a positive number"),
    ({"--preset": "loop", "--control": "sgd"}, "one of adam, gamma"),
    ({"--preset": "loop", "--sensitivity": "guess"}, "one of gradients, differences"),
    ({"--device": "tpu9"}, "device: 'tpu9' cannot be used"),
    ({"--parameters": "nothing.*"}, "no trainable parameter matches"),
    ({"--spikes": "9", "--lanczos-steps": "4"}, "at least as many as spikes"),
    ({"--preset": "loop", "--spikes": "10000"}, "spikes: got 10000, but there are only 6138 weights"),
    ({"--mean": "1,2", "--std": "1,1,1"}, "mean: got (1.0, 2.0); give three numbers"),
    ({"--mean": "0,0,0", "--std": "a,b,c"}, "std: got 'a', which is not a number"),
    ({"--mean": "0,0,0"}, "--mean and --std go together"),
    ({"--mean": "125,122,114", "--std": "63,62,66"}, "divide it by 255"),
    ({"--model": "smallnet", "--data": "folder:photos"}, "is not built in"),
    ({"--out": "base.safetensors/run"}, "cannot be written"),
]

# What only the work can show.
LATER = [
    ({"--data": f"{MINE}:nan_late"}, "logits are not finite on image 700"),
    ({"--data": f"{MINE}:nan_images"}, "--training-data: the gradient of class '0' is not finite; check its images"),
    ({"--data": f"{MINE}:nan_images", "--preset": "loop"}, "the loss on the batch is nan"),
    ({"--target": "3=0.9999"}, "target: cannot be reached within the limits by a first step. At best, on data not"),
]
EVERY = OPTIONS + LATER


@pytest.mark.parametrize(("change", "message"), EVERY, ids=[message[:40] for _, message in EVERY])
def test_options(run, capsys, tmp_path, checkpoint, change, message):
    options = {"--model": "smallnet", "--checkpoint": checkpoint, "--data": "digits", "--out": "run"} | change
    arguments = [word for pair in options.items() if pair[1] is not None for word in pair]
    at_once = (change, message) in OPTIONS
    refused(run("operate", *arguments), capsys.readouterr(), message, at_once)
    assert [path.name for path in tmp_path.iterdir()] == ["base.safetensors"]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [("--protect", "3,cat", "protect: got 'cat', which is no class"), ("--target", "cat=0.8", "target: got 'cat'")],
)
@pytest.mark.parametrize("more", [[], ["--dry-run"]], ids=["run", "dry run"])
def test_a_misspelt_class_is_refused_before_the_model_is_evaluated(run, capsys, tmp_path, option, value, message, more):
    inputs = ["--model", f"{MINE}:untouched", "--data", "digits", "--out", "run", *more]
    refused(run("operate", *inputs, option, value), capsys.readouterr(), message)
    assert not list(tmp_path.iterdir())
    with pytest.raises(AssertionError, match="the model was evaluated"):
        run("operate", *inputs, option, value.replace("cat", "5"))


@pytest.mark.parametrize("command", [["operate"], ["diagnose"], ["spectrum"], ["study", "stability"]])
def test_a_model_must_be_named(run, capsys, tmp_path, command):
    assert run(*command, "--data", "digits") == 2
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1] == "Error: Missing option '--model'."
    assert captured.out == ""
    assert not list(tmp_path.iterdir())
