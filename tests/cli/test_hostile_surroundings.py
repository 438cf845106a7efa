"""Surroundings that are against us: odd terminals, interrupts, a user's broken code, long names."""

import os
import subprocess
import sys

import pytest
from bad_inputs import refused
from torch import nn

import hessian_surgery as hs
from conftest import points

pytestmark = pytest.mark.usefixtures("own_folder")

TINY = ["--data", "digits", "--out", "run"]
START = "from hessian_surgery.cli.start import start; start()"


def called(arguments, code=START, **options):
    """Run the program in a process of its own."""
    words = [sys.executable, "-c", f"import sys; sys.argv[0] = 'hessian-surgery'; {code}", *arguments]
    return subprocess.run(words, capture_output=True, timeout=120, **options)


def test_a_terminal_that_knows_no_greek():
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    parts = {f"{name}_data": points(12, i) for i, name in enumerate(("training", "calibration", "heldout"))}
    hs.operate(nn.Linear(2, 3), config=hs.SurgeryConfig(directions="biases"), **parts).save("run")
    done = called(["card", "run"], env=environment)
    assert done.returncode == 0, done.stderr
    assert b"\\u03c3" in done.stdout
    done = called(["report", "σ"], env=environment)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_behind_stdout():
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "hessian_surgery", "diagnose", "--help"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr == "error: no output: No space left on device\n"


INTERRUPT = """
import importlib.abc, sys
class Stop(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "{name}":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Stop())
"""


@pytest.mark.parametrize("module", ["torch", "typer", "rich.console"])
def test_an_interrupt_during_imports_is_one_line(module):
    done = called(["report", "nowhere"], INTERRUPT.format(name=module).replace("import sys; ", "") + START, text=True)
    assert done.returncode == 130, done.stderr
    assert done.stderr == "interrupted\n"


@pytest.mark.parametrize(("kept", "how"), [(True, "with --resume to continue"), (False, "again")])
def test_an_interrupt_says_how_to_continue(run, capsys, monkeypatch, checkpoint, kept, how):
    def stop(*arguments, folder, **options):
        if kept:
            (folder / "history.jsonl").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("hessian_surgery.cli.operate.operate_on_model", stop)
    assert run("operate", "--model", "smallnet", "--checkpoint", checkpoint, *TINY) == 130
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"interrupted; give the same command {how}")


BROKEN = {
    "syntax": ("def two(:\n    pass\n", "invalid syntax (", "broken.py, line 1)"),
    "at import": ("import math\nmath.absent\n", "AttributeError: module 'math'", "broken.py, line 2)"),
    "exits": ("import sys\nsys.exit(9)\n", "SystemExit: 9", "broken.py, line 2)"),
    "in the factory": ("def two():\n    return 1 / 0\n", "ZeroDivisionError: division by zero", "broken.py, line 2)"),
    "absent": ("", "has no attribute 'two'", ""),
}


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("option", ["--model", "--data"])
def test_a_users_module_that_is_broken(run, capsys, tmp_path, monkeypatch, fault, option):
    text, *words = BROKEN[fault]
    (tmp_path / "broken.py").write_text(text)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    given = {"--model": "bad_inputs:own_weights", "--data": "digits"} | {option: "broken:two"}
    code = run("operate", *[word for pair in given.items() for word in pair], "--out", "run")
    captured = capsys.readouterr()
    for said in words:
        refused(code, captured, said)
    assert not (tmp_path / "run").exists()


OPTIONS = [
    ({"--model": "./nets:two"}, "'./nets:two' is not built in and cannot be imported"),
    ({"--image-size": "100000"}, "--image-size: got 100000; give 1 to 4096 pixels"),
    ({"--device": "meta"}, "device: 'meta' cannot be used"),
    ({"--directions": "spikes", "--basis-memory": "inf"}, "--basis-memory: got inf; it must be a finite number"),
    ({"--out": "o" * 240}, "is too long; give names of at most 200 bytes"),
    ({"--out": "a/" * 2000}, "is too long; give names of at most 200 bytes"),
    ({"--out": "r\udcff"}, "a control character or a byte that is no UTF-8"),
    ({"--out": "r\x1b[2J"}, "a control character or a byte that is no UTF-8"),
    ({"--iterations": "9" * 25}, "iterations: got too large a number"),
    ({"--max-drop": "nan"}, "--max-drop: got nan; it must be a finite number"),
]


@pytest.mark.parametrize(("change", "message"), OPTIONS)
def test_options(run, capsys, tmp_path, change, message):
    given = {"--model": "bad_inputs:own_weights", "--data": "digits", "--out": "run"} | change
    refused(run("operate", *[word for pair in given.items() for word in pair]), capsys.readouterr(), message)
    assert not list(tmp_path.iterdir())


def test_names_of_a_training_that_are_too_long_are_refused_before_it(run, capsys):
    refused(
        run("train", "--model", "smallnet", "--data", "digits", "--out", "o" * 240), capsys.readouterr(), "too long"
    )


def test_an_empty_name_is_no_missing_one(run, capsys, tmp_path):
    """Found by fuzzing: it trained eighteen nets."""
    arguments = ["--model", "", "--data", "digits", "--checkpoint", "absent.pt"]
    refused(run("study", "predictors", *arguments), capsys.readouterr(), "absent.pt is not a file")
