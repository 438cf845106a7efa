"""From the command line: Hugging Face folders in, a patched folder out."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hessian_surgery as hs
from hessian_surgery.model.evaluation import compute_logits
from hugging_face_folders import needs_hf


def contents(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def hf(function):
    for mark in needs_hf:
        function = mark(function)
    return function


@hf
@pytest.mark.parametrize("case", ["vit", "resnet", "bert"])
def test_diagnose_operate_apply_and_revert(run, folders, tmp_path, monkeypatch, capsys, case):
    monkeypatch.chdir(tmp_path)
    named = ("--model", f"hf:{folders / case}", "--data", f"hf:{folders / case}-data")
    assert run("diagnose", *named, "--json") == 0
    diagnosis = json.loads(capsys.readouterr().out)
    assert diagnosis["noun"] == ("texts" if case == "bert" else "images")
    assert run("operate", *named, "--out", "run", "--quick", "--budget", "5pp") == 0
    said = capsys.readouterr()
    assert "not normalised" not in said.err
    assert "no --checkpoint" not in said.err
    result = json.loads(Path("run/result.json").read_text())
    assert result["changed"]["weights"] > 0
    assert run("revert", "run/model", "run/patch.safetensors", "--out", "again") == 0
    assert contents("again") == contents(folders / case)
    assert run("apply", str(folders / case), "run/patch.safetensors", "--out", "applied") == 0
    assert contents("applied") == contents("run/model")
    before, after = (hs.open_pretrained(place) for place in (folders / case, "run/model"))
    parts = before.parts(folders / f"{case}-data")
    expected = json.loads(Path("run/result.json").read_text())["after"]["heldout"]["accuracy"]
    logits = compute_logits(hs.Classifier(after.model), parts["heldout_data"])
    found = (logits.argmax(1) == parts["heldout_data"].labels).double().mean().item()
    assert found == pytest.approx(expected)
    # By Python: the same operation gives the same logits, bit for bit.
    config = hs.SurgeryConfig(directions="biases", budget=0.05)
    stored = before.checkpoint.dtypes
    hs.operate(before.model, **parts, config=config, stored_as=stored)
    assert torch.equal(compute_logits(hs.Classifier(before.model), parts["heldout_data"]), logits)


@hf
def test_a_model_by_its_name_is_found_in_the_cache_without_network(folders, tmp_path):
    """The layout of the Hub's cache, as a download leaves it."""
    place = tmp_path / "hub/models--me--words"
    (place / "refs").mkdir(parents=True)
    (place / "refs/main").write_text("0" * 40)
    (place / "snapshots").mkdir()
    (place / "snapshots" / ("0" * 40)).symlink_to(folders / "bert")
    command = [sys.executable, "-m", "hessian_surgery", "diagnose", "--model", "hf:me/words"]
    command += ["--data", f"hf:{folders}/bert-data", "--json"]
    kept = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "hub")}
    done = subprocess.run(command, env=kept, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"] == "BertForSequenceClassification"


@hf
def test_other_images_go_through_the_models_own_processor(run, folders, tmp_path, capsys):
    from datasets import load_from_disk

    data = load_from_disk(folders / "vit-data")
    for split in ("train", "test"):
        for i, row in enumerate(data[split].select(range(500)) if split == "test" else data[split]):
            folder = tmp_path / "photos" / split / f"digit {row['label']}"
            folder.mkdir(parents=True, exist_ok=True)
            row["image"].save(folder / f"{i}.png")
    assert run("diagnose", "--model", f"hf:{folders}/vit", "--data", f"imagefolder:{tmp_path}/photos", "--json") == 0
    said = capsys.readouterr()
    assert "not normalised" not in said.err
    parts = hs.open_pretrained(folders / "vit").parts({"train": data["train"], "test": data["test"].select(range(500))})
    own = hs.diagnose(
        hs.open_pretrained(folders / "vit").model,
        training_data=parts["training_data"],
        calibration_data=parts["calibration_data"],
    )
    assert json.loads(said.out)["metrics"]["accuracy"] == pytest.approx(own.metrics.accuracy, abs=0.1)


@hf
def test_texts_that_were_cut_off_are_counted(run, folders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folders / "bert", "short")
    settings = json.loads(Path("short/tokenizer_config.json").read_text())
    Path("short/tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": 6}))
    assert run("operate", "--model", "hf:short", "--data", f"hf:{folders}/bert-data", "--out", "run", "--quick") == 0
    said = json.loads(Path("run/result.json").read_text())["warnings"]
    told = [warning for warning in said if "cut off" in warning]
    assert len(told) == 1
    assert re.fullmatch(r"\d+ of \d+ calibration texts and \d+ of \d+ held-out texts were cut off at 6 tokens", told[0])


@hf
def test_what_does_not_go_together_is_said(run, folders, tmp_path, capsys):
    bert, words = f"hf:{folders}/bert", f"hf:{folders}/bert-data"
    (tmp_path / "pickled").mkdir()
    shutil.copy(folders / "bert/config.json", tmp_path / "pickled")
    (tmp_path / "pickled/pytorch_model.bin").write_bytes(b"pickle")
    pickled = f"hf:{tmp_path}/pickled"
    cases = [
        (("--model", pickled, "--data", words), f"error: --model: {tmp_path}/pickled holds pickled weights"),
        (("--model", bert, "--data", words, "--checkpoint", "x.safetensors"), "has weights of its own"),
        (("--model", f"hf:{folders}/vit", "--data", words), "the model has no tokenizer"),
        (("--model", "hf:./nowhere", "--data", words), "--model: ./nowhere does not exist"),
        (("--model", bert, "--data", "hf:./nowhere"), "--data: ./nowhere does not exist"),
    ]
    for words_given, message in cases:
        assert run("operate", *words_given, "--out", str(tmp_path / "run")) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "run").exists()
    assert run("train", "--model", bert, "--data", words, "--out", str(tmp_path / "x.safetensors")) == 2
    assert "train it further with transformers" in capsys.readouterr().err


def test_the_form_of_the_model_is_checked_before_the_data_are_opened(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/config.json").write_text("{}")
    assert run("diagnose", "--model", "mine", "--data", "hf:./nowhere") == 2
    said = capsys.readouterr().err
    assert said.startswith("error: --model: got 'mine'; give one of resnet18")
    assert "did you mean hf:mine?" in said


def test_the_option_that_was_given_is_named(run, tmp_path, capsys):
    given = ("--model", "smallnet", "--data", "digits", "--calibration-data", f"hf:{tmp_path}:validation")
    assert run("diagnose", *given) == 2
    assert capsys.readouterr().err.startswith(f"error: --calibration-data: hf:{tmp_path}:validation ends in no known")


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("transformers", ("--model", "hf:.", "--data", "digits")),
        ("datasets", ("--model", "smallnet", "--data", "hf:.")),
    ],
)
def test_without_the_extra_one_line_says_what_to_install(run, monkeypatch, capsys, package, words):
    monkeypatch.setitem(sys.modules, package, None)
    assert run("diagnose", *words) == 2
    said = capsys.readouterr().err
    assert f"it needs {package}, which is not installed; pip install 'hessian-surgery[hf]'" in said
    assert len(said.strip().splitlines()) == 1
