"""README and pages: Python runs, commands parse, links lead somewhere, lists are complete."""

import importlib
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from safetensors.torch import load_file
from torch.utils.data import TensorDataset

import hessian_surgery as hs
from conftest import operate
from extras import extra
from hessian_surgery.cli.compare import choose_protocol
from hessian_surgery.cli.compare_options import CompareOptions
from hessian_surgery.cli.configs import choose_config, refuse_unused
from hessian_surgery.cli.main import app
from hessian_surgery.cli.operate_options import OperateOptions
from hugging_face import make_dataset, save_lora, save_model

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
# Recipes for these libraries build on each other, and run only where the libraries are.
LIBRARIES = ("transformers", "peft")
NEEDS = re.compile(rf"^from ({'|'.join(LIBRARIES)}) import", re.MULTILINE)
# What a block needs, by what it holds; without that it is skipped.
OPTIONAL = {
    ".onnx": ("onnx", "onnxscript", "onnxruntime"),
    "import mlflow": ("mlflow",),
    "torch.utils.tensorboard": ("tensorboard",),
    "import lightning": ("lightning",),
    "import peft": ("peft",),
}


def needed(code: str) -> list[pytest.MarkDecorator]:
    """Marks for a block: what optional packages it needs."""
    packages = [package for text, needs in OPTIONAL.items() if text in code for package in needs]
    return extra(*packages) if packages else []


# The guide to Hugging Face: its blocks run in a test of their own.
GUIDE = "docs/guides/hugging-face.md"
BLOCKS = [
    pytest.param(code, id=f"{name}-{i}", marks=needed(code))
    for name, text in PAGES.items()
    for i, code in enumerate(PYTHON.findall(text))
    if name != GUIDE and not NEEDS.search(code)
]
# What pages write for a model and its data.
STAND_INS = {"A", "B", "D", "…"}
# What pages write for a seed.
SEED = "S"
# Pages to look things up in, and pages of measurements, may be long.
LONG = ("docs/reference/", "docs/evidence/", "docs/results/")
# Fields of a result whose own keys are names of classes, stages or criteria.
FREE_KEYS = ("gained_from", "lost_to", "seconds", "criteria", "targets", "limits")


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
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    test = TensorDataset(digits_parts.heldout.inputs(), digits_parts.heldout.labels)
    given = {"model": trained, "train": digits_parts.training, "test": test}
    exec(compile(code, "block", "exec"), given)
    assert "hs" in given


@pytest.mark.extras
def test_the_guide_to_hugging_face_runs(tmp_path, monkeypatch):
    for library in ("transformers", "datasets", "accelerate"):
        pytest.importorskip(library, reason=f"{library} is optional")
    monkeypatch.chdir(tmp_path)
    dataset = make_dataset()
    save_model(Path("my-model"), dataset)
    dataset.save_to_disk("my-data")
    for code in PYTHON.findall(PAGES[GUIDE]):
        given: dict[str, Any] = {"dataset": dataset}
        exec(compile(code, "guide", "exec"), given)
        if "outcome" in given:
            assert given["outcome"].findings.heldout.classes == ("sad", "calm", "glad")
            assert "texts" in repr(given["outcome"])
    assert Path("patched/tokenizer.json").exists()
    assert list(Path("diagnoses").iterdir())


@pytest.mark.extras
def test_the_figures_in_the_guide_to_hugging_face_are_those_recorded():
    for library in ("transformers", "datasets"):
        pytest.importorskip(library, reason=f"{library} is optional")
    from benchmarks.hugging_face import RESULTS, row

    runs = json.loads(RESULTS.read_text())
    assert set(runs) == {"vit", "resnet", "bert"}
    for case, found in runs.items():
        assert row(case, found) in PAGES[GUIDE]
        assert sum(after - before for before, after in (run["sigma"] for run in found)) < 0
        assert len(found) == 5


@pytest.mark.extras
def test_the_recipes_for_hugging_face_and_lora_run(tmp_path, monkeypatch):
    for library in (*LIBRARIES, "datasets"):
        pytest.importorskip(library, reason=f"{library} is optional")
    monkeypatch.chdir(tmp_path)
    dataset = make_dataset()
    save_model(Path("my-model"), dataset)
    save_lora(Path("my-model"), Path("my-lora"))
    before = load_file("my-lora/adapter_model.safetensors")
    given = {"dataset": dataset}
    recipes = [code for code in PYTHON.findall(PAGES["README.md"]) if NEEDS.search(code)]
    assert [NEEDS.search(code)[1] for code in recipes] == list(LIBRARIES)
    text, lora = (exec(compile(code, "recipe", "exec"), given) or given["outcome"] for code in recipes)
    assert text.findings.heldout.classes == ("sad", "calm", "glad")
    assert "texts" in text.summary() + repr(text)
    assert {name for name, tensor in lora.weights.items() if not torch.equal(tensor, lora.base_weights[name])}
    after = load_file("patched-lora/adapter_model.safetensors")
    moved = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert moved
    assert all("lora" in name or "classifier" in name for name in moved)
    assert Path("patched/config.json").exists()


@pytest.mark.parametrize("line", COMMANDS)
def test_command_parses(line):
    words = list(takewhile(lambda word: word != ">", shlex.split(line, comments=True)[1:]))
    command = typer.main.get_command(app)
    if words[0].startswith("-"):
        assert words[0] in {"--help", *(name for option in command.params for name in option.opts)}
        return
    name = ""
    while hasattr(command, "commands"):
        name = words.pop(0)
        command = command.commands[name]
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
        options = OperateOptions(**given)
        refuse_unused(options, choose_config(options))
    if name == "compare":
        choose_protocol(CompareOptions(**given))


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


def test_the_tables_of_the_evidence_are_those_of_its_json():
    script = runpy.run_path(str(ROOT / "docs/make_evidence.py"))
    page = PAGES["docs/evidence/operation.md"]
    assert page.count("<!-- table ") == page.count("<!-- end of table -->") > 0
    assert script["filled"](page) == page, "make results"


def test_every_page_is_in_the_contents():
    listed = set()
    for folder in ("docs", "docs/results"):
        trees = re.findall(r"^```{toctree}\n(.*?)^```", PAGES[f"{folder}/index.md"], re.MULTILINE | re.DOTALL)
        names = [name for tree in trees for name in tree.split() if name.split("/")[-1][0] not in ":"]
        listed |= {f"{folder}/{name}.md" for name in names}
    pages = set(PAGES) - {"README.md", "docs/index.md"}
    assert pages <= listed


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith(LONG)])
def test_a_page_is_short(page):
    words = [word for word in PAGES[page].split() if word != "|"]  # a table's bar is no word
    # The map has a line for every file.
    assert len(words) <= (1400 if page == "docs/architecture.md" else 1200)


@pytest.mark.parametrize("page", PAGES)
def test_lines_of_prose_are_short(page):
    lines = FENCE.sub("", PAGES[page]).splitlines()
    assert not [line for line in lines if len(line) > 100 and not line.startswith("|")]


@pytest.mark.parametrize("page", PAGES)
def test_code_needs_the_public_names_alone(page):
    code = "\n".join(PYTHON.findall(PAGES[page]))
    imported = re.findall(r"^(?:from|import) (hessian_surgery\S*.*)$", code, re.MULTILINE)
    assert set(imported) <= {"hessian_surgery as hs"}


def test_the_reference_holds_every_public_name():
    listed = set(re.findall(r"^\.\. auto\w+:: (\S+)$", PAGES["docs/reference/api.md"], re.MULTILINE))
    assert listed == set(hs.__all__)


def test_the_reference_holds_every_option():
    page = PAGES["docs/reference/options.md"]
    for name in every_option(typer.main.get_command(app)) - {"--help"}:
        assert re.search(rf"`[^`]*{name}\b", page), name


def every_option(command: Any) -> set[str]:
    """The names of the options of a command and of the commands below it."""
    own = {name for option in command.params for name in option.opts + option.secondary_opts if name[0] == "-"}
    return own.union(*(every_option(below) for below in getattr(command, "commands", {}).values()))


def test_the_methods_constants_are_the_codes():
    table = re.compile(r"^\|[^|]+\| ([\d., ]+) \| `(hessian_surgery\.[\w.]+)` \|$", re.MULTILINE)
    rows = [row for text in PAGES.values() for row in table.findall(text)]
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


@pytest.mark.parametrize("algorithm", ["default", "loop"])
def test_the_reference_names_every_file_and_field_of_a_run(algorithm, trained, digits_parts, tmp_path):
    page = PAGES["docs/reference/run-folder.md"]
    config = hs.LoopConfig(iterations=1) if algorithm == "loop" else hs.SurgeryConfig(iterations=1)
    outcome = operate(trained, digits_parts, config)
    outcome.save(tmp_path)
    hs.write_report(tmp_path)
    files = {path.name for path in tmp_path.iterdir()}
    assert "result.json" in files
    for name in files | fields(outcome.as_dict()):
        assert f"`{name}`" in page, name


def fields(content: Any) -> set[str]:
    """The names of all fields of a result, however deep."""
    if isinstance(content, dict):
        return set(content).union(*(fields(value) for key, value in content.items() if key not in FREE_KEYS))
    return set().union(*map(fields, content)) if isinstance(content, list | tuple) else set()


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
@pytest.mark.parametrize("flaw", ["[a link](nowhere.md)", "$\\unknowncommand$", "[an anchor](report.md#nowhere)"])
def test_a_warning_fails_the_site(flaw, tmp_path):
    pytest.importorskip("sphinx")
    shutil.copytree(DOCS, tmp_path / "docs")
    with (tmp_path / "docs/guides/quickstart.md").open("a", encoding="utf-8") as page:
        page.write(f"\n{flaw}\n")
    assert build(tmp_path / "docs", tmp_path / "site").returncode != 0
