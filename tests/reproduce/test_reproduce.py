"""`reproduce`: every item in its quick form, runs that go on, and files that are missing."""

import json

import pytest

from hessian_surgery.cli.choices import ITEMS
from hessian_surgery.reproduce.catalogue import NAMES, load_item
from hessian_surgery.sealed import read_sealed, write_sealed

pytestmark = pytest.mark.usefixtures("own_folder")

# Items that take a second; the others are tried by `make test-full`.
SHORT = ("baseline",)


def quick(run, *names):
    assert run("reproduce", *names, "--quick", "--splits", "2", "--out", "again") == 0


def test_the_command_line_knows_every_item(run, capsys):
    assert ITEMS == NAMES
    assert all(load_item(name).name == name for name in NAMES)
    assert run("reproduce", "--list", "--json") == 0
    assert [item["name"] for item in json.loads(capsys.readouterr().out)["items"]] == list(NAMES)


@pytest.mark.parametrize(
    "name", [name if name in SHORT else pytest.param(name, marks=pytest.mark.full) for name in NAMES]
)
def test_an_item_in_its_quick_form(run, capsys, tmp_path, name):
    quick(run, name)
    content = json.loads((tmp_path / f"again/{name}.json").read_text())
    assert content["rows"]
    assert {row["verdict"] for row in content["rows"]} == {"not comparable"}
    page = (tmp_path / f"again/{name}.md").read_text()
    assert all(row["label"].split("|")[0].strip() in page for row in content["rows"])
    assert f"`hessian-surgery reproduce {name} --quick --splits 2`" in page
    figure = tmp_path / f"again/{name}.svg"
    assert figure.exists() == (load_item(name).draw is not None)


def test_what_is_finished_is_not_run_again(run, tmp_path):
    quick(run, "baseline")
    path = tmp_path / "again/baseline/cifar10-split-0.json"
    write_sealed(path, read_sealed(path, "out") | {"mine": 1})
    (tmp_path / "again/baseline.json").unlink()
    quick(run, "baseline")
    assert read_sealed(path, "out")["mine"] == 1
    assert (tmp_path / "again/baseline.json").exists()


def test_a_folder_of_other_inputs_is_refused(run, capsys, tmp_path):
    quick(run, "baseline")
    marks = tmp_path / "again/inputs.json"
    write_sealed(marks, read_sealed(marks, "out") | {"cifar10": ["parquet:elsewhere", "smallnet", ""]})
    assert run("reproduce", "baseline", "--quick", "--out", "again") == 2
    assert "holds results from other inputs (cifar10); give another folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["inputs.json", "baseline/cifar10-split-0.json"])
def test_a_damaged_file_is_not_believed(run, capsys, tmp_path, name):
    """A digit that changed in what was measured is a digit of the paper's table."""
    quick(run, "baseline")
    path = tmp_path / "again" / name
    text = path.read_text()
    key, value = ("quick", "True") if name == "inputs.json" else ("accuracy", "0.")
    place = text.index(value, text.index(key))
    path.write_text(f"{text[:place]}9{text[place + 1 :]}")
    assert run("reproduce", "baseline", "--quick", "--splits", "2", "--out", "again") == 2
    assert "is damaged: its hash is another; remove it to have it made again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((), "names: missing; give all or some names, or --list to see them"),
        (("table-4",), "got 'table-4'; give all, or some of baseline"),
        (("baseline",), "--sources: missing; give a folder with cifar10 (get it from https:"),
        (("baseline", "--sources", "."), "has no folder cifar10; get it from https://huggingface.co/datasets/uoft-cs"),
        (("baseline", "--data", "parquet:c", "--checkpoint", "none"), "--checkpoint: none is not a file"),
        (("baseline", "--quick", "--data", "digits"), "--data: a quick run is about digits; leave out one of the two"),
    ],
)
def test_what_is_missing_is_said_in_one_line(run, capsys, given, message):
    assert run("reproduce", *given, "--out", "again") == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert "\n" not in said


def test_a_missing_checkpoint_comes_with_the_command_that_makes_it(run, capsys, tmp_path):
    (tmp_path / "cifar10").mkdir()
    assert run("reproduce", "baseline", "--sources", ".") == 2
    command = "hessian-surgery train --data parquet:cifar10 --model resnet50 --out resnet50-cifar10.safetensors"
    assert command in capsys.readouterr().err
