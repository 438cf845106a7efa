"""What the README and the pages say: Python runs, commands parse, links lead somewhere, constants are the code's."""

import importlib
import re
import shlex
import shutil
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest
import typer
from torch.utils.data import TensorDataset

import hessian_surgery as hs
from hessian_surgery.cli.inputs import choose_config, refuse_unused
from hessian_surgery.cli.laboratory import find_study
from hessian_surgery.cli.main import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
}
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(hessian-surgery [^`]+)`")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(code, id=f"{name}-{i}") for name, text in PAGES.items() for i, code in enumerate(PYTHON.findall(text))
]
# What pages write for a model and its data, and for a seed.
STAND_INS, SEED = {"A", "B", "D", "…"}, "S"


def commands(text: str) -> list[str]:
    """The `hessian-surgery` commands of a page, in blocks and in running text, each in one line."""
    blocks = "\n".join(SHELL.findall(text)).replace("\\\n", " ").splitlines()
    running = [found.replace("\n", " ") for found in INLINE.findall(FENCE.sub("", text))]
    return [line for line in blocks + running if line.startswith("hessian-surgery ")]


COMMANDS = [
    pytest.param(line, id=f"{name}-{i}") for name, text in PAGES.items() for i, line in enumerate(commands(text))
]


@pytest.mark.parametrize("code", BLOCKS)
def test_block_runs(code, trained, digits_parts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    test = digits_parts.heldout
    given = {
        "model": trained,
        "train_dataset": digits_parts.training,
        "test_dataset": TensorDataset(test.inputs(), test.labels),
    }
    exec(compile(code, "block", "exec"), given)
    assert "hs" in given


@pytest.mark.parametrize("line", COMMANDS)
def test_command_parses(line):
    name, *words = takewhile(lambda word: word != ">", shlex.split(line, comments=True)[1:])
    command = typer.main.get_command(app).commands[name]
    if STAND_INS & set(words):
        words = [word for word in words if word not in STAND_INS] + ["--model", "resnet50"]
    elif not words:  # named in passing
        return
    words = ["0" if word == SEED else word for word in words]
    try:
        given = command.make_context(name, words).params
    except typer.BadParameter as error:
        raise AssertionError(f"{line}: {error}") from error
    if name == "operate":
        refuse_unused(given, choose_config(given))
    if name == "study":
        find_study(given["name"])
    if name == "compare" and given["methods"]:
        hs.Protocol(methods=tuple(given["methods"].split(",")))


def test_there_are_commands():
    assert len(COMMANDS) > 60
    assert len(BLOCKS) > 12


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    folder = (ROOT / page).parent
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", PAGES[page])):
        if target.startswith(("http:", "https:")):
            continue
        name, _, anchor = target.partition("#")
        path = (folder / name).resolve() if name else ROOT / page
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path.read_text(encoding="utf-8")), target


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_anchors_are_githubs():
    assert anchors("## All 99 spikes (section 8), and σ\n") == {"all-99-spikes-section-8-and-σ"}


def test_every_page_is_in_the_contents():
    trees = re.findall(r"^```{toctree}\n(.*?)^```", PAGES["docs/index.md"], re.MULTILINE | re.DOTALL)
    listed = {f"docs/{name}.md" for tree in trees for name in tree.split() if name.split("/")[-1][0] not in ":"}
    pages = set(PAGES) - {"README.md", "docs/index.md"}
    assert pages <= listed


def test_the_reference_holds_every_public_name():
    listed = set(re.findall(r"^\.\. auto\w+:: (\S+)$", PAGES["docs/api.md"], re.MULTILINE))
    assert set(hs.__all__) <= listed


def test_the_methods_constants_are_the_codes():
    rows = re.findall(
        r"^\|[^|]+\| ([\d., ]+) \| `(hessian_surgery\.[\w.]+)` \|$", PAGES["docs/reference/constants.md"], re.MULTILINE
    )
    assert len(rows) > 8
    for value, place in rows:
        module, _, name = place.rpartition(".")
        found = getattr(importlib.import_module(module), name)
        written = tuple(float(part) for part in value.split(", "))
        assert (tuple(found) if isinstance(found, tuple) else (found,)) == written, place


def test_the_readme_shows_the_picture_the_two_commands_and_the_five_lines():
    readme = PAGES["README.md"]
    assert "](docs/demo.svg)" in readme
    assert "make demo" in readme
    assert "make test" in readme
    assert any(len(code.strip().replace("\n\n", "\n").splitlines()) == 5 for code in PYTHON.findall(readme))


def test_the_guide_names_every_file_of_a_run():
    guide = PAGES["docs/operate.md"]
    for name in (
        "result.json",
        "history.jsonl",
        "config.json",
        "predictions.safetensors",
        "patch.safetensors",
        "model.safetensors",
    ):
        assert f"`{name}`" in guide


def build(source: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """What `make docs` does."""
    recipe = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "sphinx-build" in line)
    options = [word for word in recipe.split()[1:-4] if word.startswith("--")]
    assert "--fail-on-warning" in options
    command = [sys.executable, "-m", "sphinx", *options, "-d", site / "trees", source, site]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


@pytest.mark.full
def test_the_site_builds_without_a_warning_and_asks_no_server_for_anything(tmp_path):
    pytest.importorskip("sphinx")
    built = build(DOCS, tmp_path)
    assert built.returncode == 0, built.stderr
    assert built.stderr == ""
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|img|iframe)[^>]*\bsrc=\"(?:https?:)?//", text), page
        assert not re.findall(r"<link[^>]*\bhref=\"(?:https?:)?//", text), page
    assert "<math" in (tmp_path / "explanation/method.html").read_text(encoding="utf-8")


@pytest.mark.full
@pytest.mark.parametrize("flaw", ["[a link](nowhere.md)", "$\\unknowncommand$", "[an anchor](method.md#nowhere)"])
def test_a_warning_fails_the_site(flaw, tmp_path):
    pytest.importorskip("sphinx")
    shutil.copytree(DOCS, tmp_path / "docs")
    with (tmp_path / "docs/quickstart.md").open("a", encoding="utf-8") as page:
        page.write(f"\n{flaw}\n")
    assert build(tmp_path / "docs", tmp_path / "site").returncode != 0
