"""House rules that no linter checks."""

import ast
from pathlib import Path

import hessian_surgery as hs

ROOT = Path(__file__).parents[1]


def test_functions_fit_a_screen():
    paths = [*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    nodes = [(path.name, node) for path in paths for node in ast.walk(ast.parse(path.read_text()))]
    functions = [(name, node) for name, node in nodes if isinstance(node, ast.FunctionDef)]
    assert [(name, node.name) for name, node in functions if node.end_lineno - node.lineno >= 60] == []


def test_stages_never_import_later_ones():
    """Data and models, then curvature, then surgery, then what people see."""
    order = ["data", "models", "curvature", "surgery", "console"]
    package = ROOT / "src/hessian_surgery"
    for rank, stage in enumerate(order):
        later = [f"hessian_surgery.{name}" for name in (*order[rank + 1 :], "cli")]
        for path in (package / stage).rglob("*.py"):
            text = path.read_text()
            assert not [name for name in later if name + "." in text or f"import {name}" in text], path


def test_public_names_exist_and_are_documented():
    for name in hs.__all__:
        assert getattr(hs, name).__doc__, name


def test_one_version():
    assert f'version = "{hs.__version__}"' in (ROOT / "pyproject.toml").read_text()
