"""House rules that no linter checks."""

import ast
from pathlib import Path

import hessian_surgery as hs

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/hessian_surgery"
# Every module and room at the root, from the bottom up: none imports a later one.
RANKS = (
    "types",
    "plain_text",
    "errors",
    "terminal",
    "type_check",
    "pickle_scan",
    "parse_numbers",
    "short_repr",
    "markup",
    "version",
    "file_shapes",
    "page_shapes",
    "stored",
    "seeding",
    "import_by_name",
    "ranks",
    "distributed",
    "files",
    "sealed",
    "plain_modes",
    "cuda_graphs",
    "data",
    "weights",
    "model",
    "evidence",
    "curvature",
    "directions",
    "operation",
    "paper",
    "baselines",
    "report",
    "serve",
    "comparison",
    "studies",
    "reproduce",
    "cli",
    "__init__",
    "__main__",
)
# The one place where the default operation's room knows of the paper's.
DISPATCHER = "operation/algorithms.py"


def sources():
    return [*PACKAGE.rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]


def examples(node):
    """How many lines of the docstrings in a node are examples, which count as documentation."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts = [ast.get_docstring(part) or "" for part in ast.walk(node) if isinstance(part, documented)]
    return sum(len(text.partition("\nExample:\n")[2].splitlines()) + 2 for text in texts if "\nExample:\n" in text)


def test_functions_fit_a_screen():
    nodes = [(path.name, node) for path in sources() for node in ast.walk(ast.parse(path.read_text()))]
    functions = [(name, node) for name, node in nodes if isinstance(node, ast.FunctionDef)]
    long = [(name, node.name) for name, node in functions if node.end_lineno - node.lineno + 1 - examples(node) > 50]
    assert long == []


def test_files_are_short():
    texts = {path: path.read_text() for path in sources()}
    assert [path for path, text in texts.items() if len(text.splitlines()) - examples(ast.parse(text)) > 300] == []


def imported(path):
    """Every module of the package that a file imports, as `room` or `room.module`."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (n.removeprefix("hessian_surgery.") for n in names if n.startswith("hessian_surgery."))


def room(path):
    """What stands at the root of the package: a room's name, or a module's."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_module_has_a_rank_and_imports_no_later_one():
    for path in PACKAGE.rglob("*.py"):
        later = set(RANKS[RANKS.index(room(path)) + 1 :])
        if path == PACKAGE / DISPATCHER:
            later.remove("paper")
        assert not later & {name.split(".")[0] for name in imported(path)}, path


def test_no_room_imports_itself_in_a_circle():
    edges = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        edges[name] = set(imported(path)) if name != f"{DISPATCHER[:-3].replace('/', '.')}" else set()
    done = set()

    def visit(name, trail):
        assert name not in trail, (*trail, name)
        if name not in done:
            for other in edges[name] & edges.keys():
                visit(other, (*trail, name))
            done.add(name)

    for name in edges:
        visit(name, ())


def test_the_map_names_every_file():
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    sections = dict(part.split("\n", 1) for part in text.split("\n## ")[1:])
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).parts
        if path.name.startswith("__") or {"readers", "items"} & set(name):
            continue
        section = sections["The root" if len(name) == 1 else name[0]]
        assert f"`{path.name}`" in section, path


def test_public_names_exist_and_are_documented():
    for name in hs.__all__:
        assert getattr(hs, name).__doc__, name


def test_one_version():
    assert f'version = "{hs.__version__}"' in (ROOT / "pyproject.toml").read_text()
