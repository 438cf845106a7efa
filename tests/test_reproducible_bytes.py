"""The same seed gives the same bytes of every file, times aside."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import hessian_surgery as hs
from conftest import points
from hessian_surgery.model.smallnet import SmallNet

# What tells times: dates, seconds in cells of a page or at the end of a row of Markdown.
TIMES = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d\+00:00)?|(?<=>)\d+\.\d(?=</td>)|\| \d+\.\d \|$", re.MULTILINE)
COMMANDS = """
import sys
from hessian_surgery.cli.main import main
model = ["--model", "smallnet", "--checkpoint", "base.safetensors", "--data", "digits"]
spikes = ["--hessian-samples", "64"]
for words in (
    ["operate", *model, "--directions", "both", *spikes, "--iterations", "2", "--out", "run", "--figures", "figures"],
    ["operate", *model, "--folds", "2", "--out", "folds"],
    ["diagnose", *model, "--spikes", "auto", *spikes, "--out", "diagnosis", "--figures", "more"],
    ["compare", *model, "--methods", "class-bias,spikes,focal,operate", "--splits", "2", "--budgets", "0,0.2pp",
     "--epochs", "1", "--out", "front"],
    ["report", "run", "--html", "--compare", "front", "--figures", "again"],
    ["train", "--model", "smallnet", "--data", "digits", "--epochs", "1", "--out", "trained.safetensors"],
):
    sys.argv = ["hessian-surgery", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
"""


def timeless(content):
    """JSON without dates and seconds."""
    if isinstance(content, dict):
        return {key: timeless(value) for key, value in content.items() if key not in ("seconds", "date")}
    return [timeless(value) for value in content] if isinstance(content, list) else content


def written(folder: Path) -> dict[str, object]:
    """What each file in a folder holds, without times."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = str(path.relative_to(folder))
            if path.suffix in (".json", ".jsonl"):
                lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
                found[name] = [timeless(json.loads(line)) for line in lines]
            elif path.suffix in (".html", ".md"):
                found[name] = TIMES.sub("", path.read_text())
            else:
                found[name] = path.read_bytes()
    return found


def compared(one: Path, other: Path) -> set[str]:
    """The names of the files in both folders, which must be equal."""
    first, second = written(one), written(other)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    return set(first)


def test_an_operation_in_one_process(tmp_path):
    for name in ("a", "b"):
        parts = {f"{part}_data": points(20, i) for i, part in enumerate(("training", "calibration", "heldout"))}
        torch.manual_seed(0)
        hs.operate(nn.Linear(2, 3), **parts).save(tmp_path / name)
        hs.write_report(tmp_path / name)
    assert "patch.safetensors" in compared(tmp_path / "a", tmp_path / "b")


@pytest.mark.full
def test_every_command_in_processes_that_hash_differently(tmp_path):
    torch.manual_seed(0)
    weights = SmallNet(10).state_dict()
    for number in ("1", "2"):
        folder = tmp_path / number
        folder.mkdir()
        save_file(weights, folder / "base.safetensors")
        environment = os.environ | {"PYTHONHASHSEED": number}
        subprocess.run([sys.executable, "-c", COMMANDS], cwd=folder, env=environment, check=True, capture_output=True)
    names = compared(tmp_path / "1", tmp_path / "2")
    for name in ("run/patch.safetensors", "front/patch.safetensors", "front/front.png", "trained.safetensors"):
        assert name in names
