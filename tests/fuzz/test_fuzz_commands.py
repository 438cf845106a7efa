"""Commands with hostile options, and configurations with hostile values."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields

import pytest
from mutate import ESCAPES, VALUES, check_line, fuzz, survives, times
from typer.main import get_command

import hessian_surgery as hs
from hessian_surgery.cli.main import COMMANDS, STUDIES, app, main
from hessian_surgery.cli.option_names import _options
from hessian_surgery.data.images import Preprocessing
from hessian_surgery.studies.bulk_walk import Route

TEXTS = (
    "", "0", "-1", "1.5", "nan", "inf", "-inf", "1e999", "9" * 30, "9" * 5000, "0.5", "2pp", "200%", "%", "a=1", "=",
    ",", "a=b=c,d", "digits", "digits:train", "digits:test", "parquet:.", "imagefolder:.", "isic:.", "cifar10:.", "x:y",
    "./nets:two", "..:a", "os:system", "json:dumps", ":", "smallnet", "resnet50", "auto", "meta", "cuda:99", "cpu:7",
    "hpu", "loop", "paper", "paper:isic/x", "a" * 300, "/" + "b/" * 3000, "/dev/null", "/dev/null/x", "--", "-h", "σ",
    ESCAPES, "\x00", "1,2,3", "0,0,0", "class-bias,magic", "spikes:0", "random:-1", "random:" + "9" * 20, "[", "*",
)  # fmt: skip


def ran(words: list[str]) -> None:
    """Run a command in this process: it ends, with a few plain lines if the input is bad."""
    said, printed = io.StringIO(), io.StringIO()
    sys.argv = ["hessian-surgery", *words]
    with redirect_stderr(said), redirect_stdout(printed), pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code in (0, 2), (words, said.getvalue())
    if stop.value.code == 2 and "Usage:" not in said.getvalue():
        check_line(said.getvalue())


@times()
def test_command_lines(total, tmp_path, monkeypatch):
    """No command gets as far as its work: --checkpoint names no file, and there is no run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    # Typer makes the commands again at each call, which takes longer than all else.
    monkeypatch.setattr("hessian_surgery.cli.main.app", get_command(app))
    rows = [([name], kind) for name, kind, *_ in COMMANDS] + [(["study", name], kind) for name, kind, *_ in STUDIES]

    def attack(draw):
        words, kind = draw.choice(rows)
        names = list(_options(kind).values())
        words = list(words)
        if draw.random() < 0.9:
            words += [word for word in ("--model", "smallnet") if "--model" in names]
        for _ in range(draw.randint(0, 3)):
            words.append(draw.choice(names) if names and draw.random() < 0.9 else draw.choice(TEXTS))
            words.append(draw.choice(TEXTS))
        if "--checkpoint" not in names and words[0] not in ("report", "card", "apply", "revert"):
            words.append("--nowhere")
        else:
            words += ["--checkpoint", "absent.pt"] if "--checkpoint" in names else []
        ran(words)

    fuzz(total, attack)
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert left == []


TRAININGS = (hs.TrainConfig, hs.FinetuneConfig)
CONFIGS = (hs.SurgeryConfig, hs.LoopConfig, hs.SpikeSearch, hs.Protocol, Preprocessing, *TRAININGS)
ROUTE = {"kind": "bulk", "steps": 1, "length": 0.1, "wall": 0.5}


@times()
def test_configurations(total):
    known = {kind: [own.name for own in fields(kind)] for kind in CONFIGS}
    known[lambda **given: Route(**ROUTE | given)] = list(ROUTE)
    kinds = list(known)
    more = ({"a": "80%"}, {"a": 0.5}, ("a",), (0.1,), (0.0, 0.0, 0.0), 1, 2.5, 10**9, hs.SpikeSearch())
    values = (*VALUES, *TEXTS, *more)

    def attack(draw):
        kind = draw.choice(kinds)
        given = {draw.choice(known[kind]): draw.choice(values) for _ in range(draw.randint(1, 3))}
        survives(lambda: repr(kind(**given)))

    fuzz(total, attack)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: hs.SurgeryConfig(iterations=1.5), "iterations: got 1.5; it must be a whole number"),
        (lambda: hs.SurgeryConfig(iterations=True), "iterations: got True; it must be a whole number"),
        (lambda: hs.SurgeryConfig(budget=None), "budget: got None; it must be a finite number"),
        (lambda: hs.SurgeryConfig(protect="cat"), "protect: got 'cat'; it must be a list"),
        (lambda: hs.SurgeryConfig(targets={3: 0.6}), "targets: got the key 3; it must be a name"),
        (lambda: hs.SurgeryConfig(targets=["cat"]), "targets: got a list; it must be an object"),
        (lambda: hs.SurgeryConfig(search="fast"), "search: got 'fast'; it must be SpikeSearch"),
        (lambda: hs.SurgeryConfig(recalibrate="yes"), "recalibrate: got 'yes'; it must be true or false"),
        (lambda: hs.LoopConfig(amplitude=float("nan")), "amplitude: got nan; it must be a finite number or nothing"),
        (lambda: hs.SpikeSearch(basis_memory=float("inf")), "basis_memory: got inf; it must be a finite number"),
        (lambda: hs.SpikeSearch(spikes="9"), "spikes: got '9'; it must be a whole number or nothing"),
        (lambda: hs.TrainConfig(epochs="2"), "epochs: got '2'; it must be a whole number"),
        (lambda: hs.Protocol(methods="class-bias"), "methods: got 'class-bias'; it must be a list"),
        (lambda: hs.Protocol(seed=2**70), "seed: got too large a number; it must be a whole number"),
    ],
)
def test_values_of_another_type_are_refused(make, words):
    with pytest.raises(hs.InputError, match=words):
        make()
