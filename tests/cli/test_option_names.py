"""What rooms below say of arguments, the command line says of options."""

import ast
import re
from pathlib import Path

import pytest

from hessian_surgery.cli.operate_options import OperateOptions
from hessian_surgery.cli.option_names import as_options
from hessian_surgery.cli.run_options import ApplyOptions, ReportOptions

PACKAGE = Path(__file__).parents[2] / "src/hessian_surgery"
# These write commands for a shell.
COMMANDS = ("provenance.py", "starts.py", "results.py")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("max_drop: got 2; it must be less", "--max-drop: got 2; it must be less"),
        ("targets: got 'cow', which is no class", "--target: got 'cow', which is no class"),
        ("target='worst', budget=0.01 is predicted", "--target worst --budget 0.01 is predicted"),
        ("targets={'cat': 0.8, 'red fox': 0.75} asks", "--target 'cat=0.8,red fox=0.75' asks"),
        ("protect=('cat', 'dog'), max_drop=0.03 asks", "--protect cat,dog --max-drop 0.03 asks"),
        ("protect=('cat',), max_drop=0.03 asks", "--protect cat --max-drop 0.03 asks"),
        ("""targets={"it's {odd}, (so)": 0.5} asks""", """--target 'it'"'"'s {odd}, (so)=0.5' asks"""),
        ("calibration_cap=N takes fewer images", "calibration_cap=N takes fewer images"),
        ("parameters='layer4.*' moves fewer", "--parameters 'layer4.*' moves fewer"),
        ("batch_size=N takes fewer", "--batch-size N takes fewer"),
        ("unfinished: resume=True goes on", "unfinished: --resume goes on"),
        ("Lower the target, give a larger budget=N", "Lower the target, give a larger --budget N"),
        ("sample 3 has label -1, outside 0..9", "sample 3 has label -1, outside 0..9"),
        ("target cat=0.8 is missed", "target cat=0.8 is missed"),
        ("mean: --mean and --std go together", "--mean: --mean and --std go together"),
        ("give --target cat=0.8 and --max-drop 0.1", "give --target cat=0.8 and --max-drop 0.1"),
        ("checkpoint: 'max_drop' has shape (3,)", "--checkpoint: 'max_drop' has shape (3,)"),
    ],
)
def test_arguments_become_options(said, shown):
    assert as_options(said, OperateOptions) == shown


def test_an_argument_that_the_command_lacks_stays():
    assert as_options("checkpoint: a.pt is not a file", ApplyOptions) == "checkpoint: a.pt is not a file"
    assert as_options("run: runs/1 holds no finished run", ReportOptions) == "run: runs/1 holds no finished run"
    assert as_options("comparison: b has other classes", ReportOptions) == "--compare: b has other classes"


def texts(path):
    """The strings of a module that are no docstrings; of one with fields, its fixed parts."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_no_room_below_names_an_option():
    below = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "cli" and path.name not in COMMANDS]
    assert len(below) > 150
    found = [(path.name, text) for path in below for text in texts(path) if re.search(r"(^|[\s(/'\"])--[a-z]", text)]
    assert found == []


@pytest.mark.parametrize(
    "path", ["outputs/seed=3/model.pt", "outputs/seed=007/model.pt", "/mnt/training_data/a.pt", r"C:\max_drop\a.pt"]
)
def test_paths_stay_as_they_are(path):
    text = f"checkpoint: {path} has other tensors"
    assert as_options(text, OperateOptions) == f"--{text}"
