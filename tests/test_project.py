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


def imported(path):
    """Every module of the package that a file imports, as `stage` or `stage.module`."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (n.removeprefix("hessian_surgery.") for n in names if n.startswith("hessian_surgery"))


def test_stages_never_import_later_ones():
    """Data, then models, curvature, surgery, its rivals, reports, studies, and what people see."""
    order = ["data", "models", "curvature", "surgery", "rivals", "report", "studies", "comparison", "console", "cli"]
    package = ROOT / "src/hessian_surgery"
    for rank, stage in enumerate(order[:-1]):
        for path in (package / stage).rglob("*.py"):
            reached = {name.split(".")[0] for name in imported(path)}
            assert not reached & set(order[rank + 1 :]), path
    inside = ["config", "sensitivity", "planning", "amplitude", "loop", "diagnosis", "outcome", "operate"]
    for path in ((package / "surgery" / f"{name}.py") for name in ("sensitivity", "planning", "amplitude", "loop")):
        later = {f"surgery.{name}" for name in inside[inside.index("loop") + (path.stem == "loop") :]}
        assert not later & set(imported(path)), path


def test_public_names_exist_and_are_documented():
    for name in hs.__all__:
        assert getattr(hs, name).__doc__, name


def test_one_version():
    assert f'version = "{hs.__version__}"' in (ROOT / "pyproject.toml").read_text()
