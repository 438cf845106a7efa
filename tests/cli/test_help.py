"""Help: it is quick, and what it says is what the rooms do."""

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import typer

import hessian_surgery as hs
from hessian_surgery.baselines.finetune import FINETUNES
from hessian_surgery.baselines.posthoc import POSTHOC
from hessian_surgery.cli import choices, main
from hessian_surgery.cli.configs import choose_config
from hessian_surgery.cli.groups import COMPARISON, GROUPS, STUDY, TRAINING
from hessian_surgery.cli.main import COMMANDS, STUDIES
from hessian_surgery.cli.operate_options import OperateOptions
from hessian_surgery.comparison.entries import WHOLE
from hessian_surgery.comparison.protocol import Part
from hessian_surgery.curvature.memory_plan import BasisPlace, BasisPrecision
from hessian_surgery.data.sources import HUGGING_FACE, IMAGE_KINDS, SPECS
from hessian_surgery.model.build import BUILT_IN
from hessian_surgery.model.losses import LossName
from hessian_surgery.operation.config import Family
from hessian_surgery.operation.goal import Target
from hessian_surgery.paper.amplitude import Control
from hessian_surgery.paper.config import SensitivityMethod
from hessian_surgery.paper.plan import Bound
from hessian_surgery.parse_numbers import parse_amounts
from hessian_surgery.studies.model_zoo import RECIPES
from hessian_surgery.studies.predictors import METHOD
from hessian_surgery.studies.spectrum import OperatorName

HEAVY = ("torch", "numpy", "scipy", "matplotlib", "pandas", "sklearn", "pyarrow", "PIL")


def imported(*words):
    """What a command imports, by the top names of the modules."""
    command = [sys.executable, "-X", "importtime", "-m", "hessian_surgery", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["operate", "--help"], ["study", "predictors", "--help"]])
def test_help_imports_nothing_heavy(words):
    found = imported(*words)
    assert "typer" in found
    assert not found & set(HEAVY)


def test_no_file_of_options_imports_a_room():
    for kind in {kind for _, kind, *_ in (*COMMANDS, *STUDIES)}:
        tree = ast.parse(Path(sys.modules[kind.__module__].__file__).read_text())
        names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        own = {name for name in names if name.startswith("hessian_surgery.")}
        assert all(name.startswith("hessian_surgery.cli.") for name in own)


@pytest.mark.parametrize("row", [*COMMANDS, *STUDIES], ids=lambda row: row[0])
def test_a_command_is_a_function_of_its_options(row):
    _, kind, place, _ = row
    module, _, function = place.partition(":")
    found = getattr(importlib.import_module(f"hessian_surgery.cli.{module}"), function)
    assert found.__annotations__["options"] is kind
    assert found.__annotations__["return"] in (None, int)  # an exit code, if there are several


def test_the_lists_of_public_names_agree():
    tree = ast.parse(Path(hs.__file__).read_text())
    typed = next(node for node in tree.body if isinstance(node, ast.If))
    found = {alias.name: node.module for node in typed.body for alias in node.names}
    assert found == {name: f"hessian_surgery.{module}" for name, module in hs._MODULES.items()}
    assert sorted(found) == sorted(hs.__all__)
    assert set(hs.__all__) <= set(dir(hs))
    with pytest.raises(AttributeError, match="has no attribute 'operat'"):
        hs.operat  # noqa: B018


def commands():
    """Every command, by its words."""
    app = typer.main.get_command(main.app)
    for name, command in app.commands.items():
        below = getattr(command, "commands", {})
        yield from ((f"{name} {other}", own) for other, own in below.items()) if below else [(name, command)]


def records(command):
    """What help shows of each option: the option, its name and value, its text."""
    context = command.make_context("", [], resilient_parsing=True)
    for own in command.params:
        yield own, *own.get_help_record(context)


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_every_option_shows_its_group_and_a_default_or_that_it_is_required(name):
    command = dict(commands())[name]
    for own, shown, text in records(command):
        assert re.search(r"\[(default: [^\]]+|required)", text), shown
        if own.param_type_name == "option":
            assert "<" not in shown, shown
            assert own.rich_help_panel in GROUPS, shown


def test_no_line_of_the_list_of_commands_is_cut_off(run, capsys):
    assert run("--help") == 0
    assert not re.search(r"\w\.\.\.$", capsys.readouterr().out, re.MULTILINE)


def test_help_shows_groups_in_order(run, capsys):
    assert run("operate", "--help") == 0
    headings = re.findall(r"^(\S.*):$", capsys.readouterr().out, re.MULTILINE)
    assert headings == [*[name for name in GROUPS if name not in (COMPARISON, STUDY, TRAINING)], "Help"]


CHOICES = {
    choices.MODELS: BUILT_IN,
    choices.LOSSES: get_args(LossName),
    choices.TARGETS: get_args(Target),
    choices.FAMILIES: get_args(Family),
    choices.PLACES: get_args(BasisPlace),
    choices.PRECISIONS: get_args(BasisPrecision),
    choices.SENSITIVITIES: get_args(SensitivityMethod),
    choices.CONTROLS: get_args(Control),
    choices.BOUNDS: get_args(Bound),
    choices.PARTS: get_args(Part),
    choices.OPERATORS: get_args(OperatorName),
    choices.METHODS: (*POSTHOC, *WHOLE, *FINETUNES),
    choices.DATA_KINDS: ("digits", *(f"{kind}:" for kind in (HUGGING_FACE, *IMAGE_KINDS))),
    (choices.DATA, choices.PREDICTED, choices.NETS): (SPECS, METHOD, len(RECIPES)),
}


def test_choices_are_the_rooms():
    for written, true in CHOICES.items():
        assert written == tuple(true)
    for preset in choices.PRESETS:
        assert choose_config(OperateOptions(model="smallnet", preset=preset))


def test_defaults_are_the_rooms():
    context = {own.name: text for own, _, text in records(typer.main.get_command(main.app).commands["operate"])}
    known = vars(hs.LoopConfig()) | vars(hs.SurgeryConfig()) | vars(hs.SpikeSearch())
    checked = [name for name in context if known.get(name) not in (None, (), "*") and name != "seed"]
    assert len(checked) > 9
    for name in checked:
        shown = f"{100 * known[name]:g}pp" if name == "budget" else str(known[name]).removesuffix(".0")
        shown = "off" if known[name] is False else shown
        assert f"[default: {shown}" in context[name], name
    budgets = next(text for own, _, text in records(dict(commands())["compare"]) if own.name == "budgets")
    given = re.search(r"default: (.*)\]", budgets)[1]
    assert parse_amounts("budgets", given) == pytest.approx(hs.Protocol().budgets)
    assert [
        f"{hs.SpikeSearch().tolerance}" in text
        for own, _, text in records(dict(commands())["spectrum"])
        if own.name == "tolerance"
    ] == [True]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("op", ["operate"]),
        ("operate --directions ", ["refit", "class-gradients", "spikes", "both", "biases"]),
        ("operate --max", ["--max-drop"]),
        ("compare --methods class-bias,tau", ["class-bias,tau-norm"]),
        ("study spectr", []),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell, words, expected):
    text = f"hessian-surgery {words}"
    given = {
        "_HESSIAN_SURGERY_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": text,
        "COMP_CWORD": str(len(text.split(" ")) - 1),
        "_TYPER_COMPLETE_ARGS": text,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    start = "import sys; sys.argv[0] = 'hessian-surgery'; from hessian_surgery.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", start], capture_output=True, text=True, check=False, env=os.environ | given
    )
    found = re.findall(r'^(?:_arguments .*\(\()?"([^"\\:]+)' if shell == "zsh" else r"^([^\t\n]+)", done.stdout, re.M)
    assert found == expected, done
