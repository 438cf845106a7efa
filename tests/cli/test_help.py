"""Help: it is quick, and what it says is what the rooms do."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hessian_surgery as hs
from hessian_surgery.baselines.finetune import FINETUNES
from hessian_surgery.baselines.posthoc import POSTHOC
from hessian_surgery.cli import choices
from hessian_surgery.cli.main import COMMANDS, STUDIES
from hessian_surgery.comparison.entries import WHOLE
from hessian_surgery.data.sources import SPECS
from hessian_surgery.studies.model_zoo import RECIPES
from hessian_surgery.studies.predictors import METHOD

HEAVY = ("torch", "numpy", "scipy", "matplotlib", "pandas", "sklearn", "pyarrow", "PIL")
ALL = [[], *([name] for name, *_ in COMMANDS), ["study"], *(["study", name] for name, *_ in STUDIES)]


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


def test_the_lists_of_public_names_agree():
    tree = ast.parse(Path(hs.__file__).read_text())
    typed = next(node for node in tree.body if isinstance(node, ast.If))
    found = {alias.name: node.module for node in typed.body for alias in node.names}
    assert found == {name: f"hessian_surgery.{module}" for name, module in hs._MODULES.items()}
    assert sorted(found) == sorted(hs.__all__)
    assert set(hs.__all__) <= set(dir(hs))
    with pytest.raises(AttributeError, match="has no attribute 'operat'"):
        hs.operat  # noqa: B018


def test_choices_are_the_rooms():
    search = hs.SpikeSearch()
    assert choices.DATA == SPECS
    assert (*POSTHOC, *WHOLE, *FINETUNES) == choices.METHODS
    assert (search.hessian_samples, search.tolerance) == (choices.HESSIAN_SAMPLES, choices.TOLERANCE)
    assert (METHOD, len(RECIPES)) == (choices.PREDICTED, choices.NETS)
