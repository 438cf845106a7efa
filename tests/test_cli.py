import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_operate import check_contract

import hessian_surgery.cli as cli

SHORT = ["--iterations", "2", "--hessian-samples", "64"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def checkpoint(trained, tmp_path):
    path = tmp_path / "base.safetensors"
    save_file({name: t.half() if t.is_floating_point() else t for name, t in trained.state_dict().items()}, path)
    return str(path)


def run(monkeypatch, *arguments) -> int:
    """The exit code of the command line, run in this process."""
    monkeypatch.setattr(sys, "argv", ["hessian-surgery", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code or 0


def test_demo(monkeypatch, capsys, tmp_path):
    assert run(monkeypatch, "demo", "--out", "run", "--seed", "1") == 0
    captured = capsys.readouterr()
    assert "held-out images" in captured.out
    assert "σ" in captured.out
    assert "15/15" in captured.err
    result = json.loads((tmp_path / "run/result.json").read_text())
    check_contract(result, classes=10)
    assert result["verdict"]["sentence"].split()[0] in captured.out
    assert (tmp_path / "run/base.safetensors").exists()
    assert max(len(line) for line in (captured.out + captured.err).splitlines()) <= 80


def test_operate_prints_only_json_and_writes_the_folder(monkeypatch, capsys, tmp_path, checkpoint):
    arguments = ["operate", "--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits", *SHORT]
    assert run(monkeypatch, *arguments, "--json", "--out", "run") == 0
    result = json.loads(capsys.readouterr().out)
    check_contract(result, classes=10)
    assert result == json.loads((tmp_path / "run/result.json").read_text())
    assert load_file(tmp_path / "run/model.safetensors")["fc.weight"].dtype == torch.float16
    assert run(monkeypatch, *arguments, "--out", "run") == 2
    assert "out: run holds another run" in capsys.readouterr().err


def test_operate_with_the_papers_settings(monkeypatch, capsys, tmp_path, checkpoint):
    arguments = ["operate", "--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits"]
    arguments += ["--preset", "paper:isic/class-balanced", "--lanczos-steps", "12", "--exponent", "auto", "--seed", "3"]
    assert run(monkeypatch, *arguments, "--out", "run") == 0
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert (config["iterations"], config["lanczos_steps"], config["exponent"]) == (5, 12, "auto")
    assert (config["hessian_sampling"], config["seed"]) == ("stratified", 3)
    assert "have not converged" in capsys.readouterr().out.replace("\n", " ")


def test_diagnose(monkeypatch, capsys, tmp_path, checkpoint):
    arguments = ["diagnose", "--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits"]
    assert run(monkeypatch, *arguments, "--hessian-samples", "64") == 0
    text = capsys.readouterr().out
    assert "effective rank" in text
    assert "operating" in text
    assert max(len(line) for line in text.splitlines()) <= 80
    assert run(monkeypatch, *arguments, "--json", "--spikes", "4", "--epsilon", "0.05") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["sensitivity"]) == 4
    assert found["epsilon"] == 0.05
    assert {path.name for path in tmp_path.iterdir()} == {"base.safetensors"}


@pytest.mark.parametrize("command", ["operate", "diagnose"])
def test_dry_run_says_what_it_would_cost_and_writes_nothing(monkeypatch, capsys, tmp_path, checkpoint, command):
    arguments = [command, "--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits", "--dry-run"]
    assert run(monkeypatch, *arguments) == 0
    assert "Hessian products" in capsys.readouterr().out
    assert run(monkeypatch, *arguments, "--json", "--lanczos-steps", "20") == 0
    cost = json.loads(capsys.readouterr().out)
    assert cost["products"] == 20 * (15 if command == "operate" else 1)
    assert {path.name for path in tmp_path.iterdir()} == {"base.safetensors"}


GOOD = {"--model": "smallnet", "--checkpoint": "CHECKPOINT", "--data": "digits"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--model": "vgg"}, "model: got 'vgg'"),
        ({"--model": "resnet18"}, "lacks"),
        ({"--checkpoint": None}, "checkpoint: --model smallnet has no weights of its own"),
        ({"--checkpoint": "absent.safetensors"}, "is not a file"),
        ({"--data": "mnist"}, "data: got 'mnist'"),
        ({"--data": "parquet:."}, "must hold train and test parquet files"),
        ({"--preset": "nature"}, "preset: got 'nature'"),
        ({"--preset": "paper:imagenet"}, "dataset: got 'imagenet'"),
        ({"--exponent": "many"}, "exponent: got 'many', which is not a number"),
        ({"--iterations": "0"}, "iterations: got 0"),
        ({"--device": "tpu9"}, "device: 'tpu9' cannot be used"),
        ({"--parameters": "nothing.*"}, "no trainable parameter matches"),
        ({"--spikes": "9", "--lanczos-steps": "4"}, "at least as many as spikes"),
        ({"--mean": "1,2"}, "mean: got (1.0, 2.0); three numbers are needed"),
        ({"--std": "a,b,c"}, "std: got 'a', which is not a number"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(monkeypatch, capsys, tmp_path, checkpoint, change, message):
    options = {k: checkpoint if v == "CHECKPOINT" else v for k, v in (GOOD | change).items()}
    arguments = [word for pair in options.items() if pair[1] is not None for word in pair]
    assert run(monkeypatch, "operate", *arguments, "--out", "run") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_as_a_module_and_unknown_options():
    helped = subprocess.run([sys.executable, "-m", "hessian_surgery", "--help"], capture_output=True, text=True)
    assert helped.returncode == 0
    assert all(command in helped.stdout for command in ("demo", "operate", "diagnose"))
    wrong = subprocess.run([sys.executable, "-m", "hessian_surgery", "demo", "--sed"], capture_output=True, text=True)
    assert wrong.returncode == 2
