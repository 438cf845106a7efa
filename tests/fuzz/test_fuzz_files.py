"""Our own files, damaged: every reader accepts them, or says in one line what is wrong."""

import json
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from types import SimpleNamespace

import pytest
import torch
from mutate import damaged, damaged_json, fuzz, put, survives, times
from torch import nn

import hessian_surgery as hs
from conftest import points
from hessian_surgery.baselines.training_state import load_state as load_training
from hessian_surgery.cli.predictors import _files
from hessian_surgery.comparison.protocol import Protocol
from hessian_surgery.comparison.saved_fronts import fronts_content
from hessian_surgery.file_shapes import ConfigShape
from hessian_surgery.operation.acceptance_criteria import read_criteria
from hessian_surgery.operation.history import load_history
from hessian_surgery.operation.iteration_record import StepRecord
from hessian_surgery.operation.outcome import load_findings, read_result
from hessian_surgery.operation.state_file import load_passes
from hessian_surgery.report.card import model_card
from hessian_surgery.report.run import load_run
from hessian_surgery.report.run_page import run_page
from hessian_surgery.stored import blamed_on, read_json
from hessian_surgery.studies.predictors import load_cases
from hessian_surgery.weights.patch import load_patch
from hessian_surgery.weights.tensorfile import _checksum, read_checked, save_checked, save_tensors

INPUTS = {"model": "net:make", "data": "points:make", "out": "run", "seed": "0"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A run folder, what compare and diagnose print, a study, logits and a state, of a tiny net."""
    folder = tmp_path_factory.mktemp("files")
    parts = {f"{name}_data": points(12, i) for i, name in enumerate(("training", "calibration", "heldout"))}
    torch.manual_seed(0)
    net = nn.Linear(2, 3)
    outcome = hs.operate(net, config=hs.SurgeryConfig(directions="biases"), **parts)
    outcome.save(folder / "run", inputs=INPUTS)
    heldout = parts.pop("heldout_data")
    found = hs.diagnose(net, **parts, spikes=2)
    more = {"tolerance": 0.01, "seed": 0, "inputs": INPUTS, "hashes": {"images": "0" * 64}, "environment": {"a": 1}}
    (folder / "diagnosis.json").write_text(json.dumps({"schema_version": 2, **found.as_dict(), **more}))
    outputs = hs.ModelOutputs(heldout.classes, heldout.labels, net(heldout.inputs()).detach())
    outputs.save_logits(folder / "logits.safetensors")
    protocol = Protocol(("class-bias",), 2, (0.0,))
    front = fronts_content(hs.compare_logits(outputs, protocol), INPUTS) | {"seconds": 1.0}
    front["bias_shares"] = {"spikes": [0.5, 0.5]}
    (folder / "compare.json").write_text(json.dumps(front))
    case = {"name": "a", "group": "b", "images": 9, "predictors": {"sigma": 0.1}, "delta_accuracy": 0.0}
    study = {"method": "spikes", "cases": [case | {"gains": {"fall": {"value": 0.1, "error": None}}}] * 2}
    (folder / "predictors.json").write_text(json.dumps(study))
    return folder


def attacked(total, source, target, call, hurt=damaged):
    """Call a reader for each damaged version of a file; some must be refused."""
    target.parent.mkdir(exist_ok=True)
    content = source.read_bytes() if hurt is damaged else json.loads(source.read_text())
    taken = []
    fuzz(total, lambda draw: taken.append(survives(call, put(target, hurt(content, draw)))))
    assert not all(taken)


@times()
def test_result(files, tmp_path, total):
    run = load_run(files / "run")

    def read(path):
        with blamed_on("run: here"):
            page = run_page(replace(run, result=read_result(path.parent)))
        assert "<script>alert" not in page

    attacked(total, files / "run/result.json", tmp_path / "result.json", read, damaged_json)


@times()
def test_config_and_card(files, tmp_path, total):
    run = load_run(files / "run")

    def read(path):
        with blamed_on("run: here"):
            card = model_card(replace(run, config=read_json(path, "run", ConfigShape)))
        assert "\x1b" not in card

    attacked(total, files / "run/config.json", tmp_path / "config.json", read, damaged_json)


@times()
@pytest.mark.parametrize("name", ["compare", "diagnosis"])
def test_pages(files, tmp_path, total, name):
    def read(path):
        page = hs.write_report(path.parent).read_text()
        assert "<script>alert" not in page

    attacked(total, files / f"{name}.json", tmp_path / f"{name}.json", read, damaged_json)


@times()
@pytest.mark.parametrize("name", ["compare", "diagnosis"])
def test_pairs_of_files(files, tmp_path, total, name):
    def read(path):
        given = {"diagnosis": files / "diagnosis.json", "compare": files / "compare.json"} | {name: path}
        list(
            _files(SimpleNamespace(diagnosis=[given["diagnosis"]], comparison=[given["compare"]], method="class-bias"))
        )

    attacked(total, files / f"{name}.json", tmp_path / f"{name}.json", read, damaged_json)


@times()
def test_studies(files, tmp_path, total):
    attacked(
        total, files / "predictors.json", tmp_path / "p.json", lambda path: load_cases(path, "spikes"), damaged_json
    )


@times()
def test_logits(files, tmp_path, total):
    attacked(total, files / "logits.safetensors", tmp_path / "logits.safetensors", hs.load_logits)


@times()
def test_patches(files, tmp_path, total):
    weights = {"weight": torch.zeros(3, 2), "bias": torch.zeros(3)}

    def read(path):
        load_patch(path).apply(weights)

    attacked(total, files / "run/patch.safetensors", tmp_path / "patch.safetensors", read)


@times()
def test_predictions(files, tmp_path, total):
    for name in ("result.json", "config.json"):
        (tmp_path / name).write_bytes((files / "run" / name).read_bytes())
    attacked(
        total, files / "run/predictions.safetensors", tmp_path / "predictions.safetensors",
        lambda path: load_findings(path.parent),
    )  # fmt: skip


@times()
def test_history(files, tmp_path, total):
    content = json.loads((files / "run/history.jsonl").read_text())

    def hurt(_, draw):
        return damaged_json(content, draw) + b"\n"

    attacked(
        total, files / "run/history.jsonl", tmp_path / "history.jsonl",
        lambda path: load_history(path.parent, 1, StepRecord, sha256(path.read_bytes()).hexdigest()), hurt,
    )  # fmt: skip


@times()
def test_states(tmp_path, total):
    """Of bytes, and of metadata whose checksum fits: what a program could have written."""
    tensors = {"module.weight": torch.zeros(2), "now.000000": torch.zeros(2)}
    said = {"identity": "x", "epochs": "1", "passes": '{"batch_size": 1, "channels_last": null}'}
    whole = tmp_path / "whole.safetensors"
    save_checked(whole, tensors, said)
    place = tmp_path / "checkpoint/state.safetensors"
    place.parent.mkdir()
    content = whole.read_bytes()

    def read(path):
        load_passes(tmp_path)
        read_checked(path)

    def attack(draw):
        if draw.random() < 0.7:
            survives(read, put(place, damaged(content, draw)))
            return
        forged = {key: damaged(value.encode(), draw).decode("utf-8", "replace") for key, value in said.items()}
        forged = {key: value.replace("\0", "") for key, value in forged.items()}
        save_tensors(place, tensors, forged | {"sha256": _checksum(tensors, forged)})
        survives(read, place)
        (tmp_path / "training.safetensors").write_bytes(place.read_bytes())
        survives(load_training, tmp_path, nn.Linear(2, 1), "x")

    fuzz(total, attack)


@times()
def test_criteria(tmp_path, total):
    text = b'maximum_drop = 0.03\n[classes.cat]\nminimum_accuracy = "60%"\n[classes."a b"]\nmaximum_drop = 0.1\n'
    path = tmp_path / "accept.toml"
    path.write_bytes(text)
    with suppress(FileNotFoundError):
        attacked(total, path, tmp_path / "hurt.toml", read_criteria)
