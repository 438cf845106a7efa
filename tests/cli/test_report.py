import json

import pytest

from hessian_surgery.markup import text

pytestmark = pytest.mark.usefixtures("own_folder")

SHORT = ["--budget", "0.01", "--max-drop", "0.03", "--iterations", "1"]


@pytest.fixture
def inputs(checkpoint):
    return ["--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits"]


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_an_operation_writes_its_page_and_its_figures(run, capsys, tmp_path, inputs):
    assert run("operate", *inputs, *SHORT, "--out", "run", "--figures", "figures") == 0
    assert "report: run/report.html" in capsys.readouterr().err
    page = (tmp_path / "run/report.html").read_text()
    assert {"classes.svg", "responses.png", "iterations.svg"} <= names(tmp_path / "figures")
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["inputs"]["out"] == "run"
    assert config["inputs"]["budget"] == "0.01"
    (tmp_path / "run/report.html").unlink()
    assert run("report", "run", "--html", "--figures", "again") == 0
    assert (tmp_path / "run/report.html").read_text() == page
    assert names(tmp_path / "again") == names(tmp_path / "figures")
    assert run("card", "run") == 0
    assert capsys.readouterr().out.startswith("---\nlibrary_name: pytorch\n")


def test_a_run_that_is_not_accepted_is_written_and_exits_3(run, capsys, tmp_path, inputs):
    (tmp_path / "criteria.toml").write_text("maximum_drop = 0.5\n[classes.9]\nminimum_accuracy = 0.99\n")
    assert run("operate", *inputs, *SHORT, "--out", "run", "--accept", "criteria.toml", "--json") == 3
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    (failed,) = result["acceptance"]["failed"]
    assert failed.endswith("minimum_accuracy is 99 %")
    assert f"not accepted: {failed}" in captured.err
    assert json.loads((tmp_path / "run/result.json").read_text()) == result
    assert failed in (tmp_path / "run/report.html").read_text()


def test_a_run_that_is_accepted_exits_0(run, capsys, tmp_path, inputs):
    (tmp_path / "criteria.toml").write_text("maximum_drop = 0.5\n")
    assert run("operate", *inputs, *SHORT, "--out", "run", "--accept", "criteria.toml") == 0
    assert json.loads((tmp_path / "run/result.json").read_text())["acceptance"]["failed"] == []
    assert "Every acceptance criterion is met" in (tmp_path / "run/report.html").read_text()


@pytest.mark.parametrize("content", ["minimum_accuracy = 60", "[classes.cow]\nmaximum_drop = 0.1"])
def test_bad_criteria_are_refused_before_anything_is_done(run, capsys, tmp_path, inputs, content):
    (tmp_path / "criteria.toml").write_text(content)
    assert run("operate", *inputs, "--out", "run", "--accept", "criteria.toml") == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: --accept: ")
    assert len(captured.err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_diagnosis_with_a_folder_writes_its_page(run, capsys, tmp_path, inputs):
    arguments = ["diagnose", *inputs, "--out", "diagnosis", "--figures", "figures"]
    spikes = ["--spikes", "auto", "--hessian-samples", "64"]
    assert run(*arguments, *spikes, "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert content == json.loads((tmp_path / "diagnosis/diagnosis.json").read_text())
    page = (tmp_path / "diagnosis/report.html").read_text()
    assert "Spectrum: spikes and residuals" in page
    assert "hessian-surgery diagnose --model smallnet" in page
    assert names(tmp_path / "figures") == {
        f"{n}.{k}" for n in ("classes", "responses", "spectrum") for k in ("svg", "png")
    }
    assert text(content["forecast"]["sentence"]) in page
    assert content["data"]["calibration"]["sha256"][:12] in page.partition("<section")[0]
    assert f"{content['date'][:16].replace('T', ' ')} UTC" in page
    assert run("report", "diagnosis", "--html") == 0
    assert (tmp_path / "diagnosis/report.html").read_text() == page
    assert run(*arguments) == 2
    assert "out: diagnosis holds a finished diagnosis" in capsys.readouterr().err


@pytest.mark.full
def test_a_comparison_writes_its_page_and_a_run_can_show_its_front(run, capsys, tmp_path, inputs):
    methods = ["--methods", "class-bias,logit-adjustment", "--splits", "2", "--budgets", "0,0.2pp"]
    assert run("compare", *inputs, *methods, "--out", "front", "--figures", "figures") == 0
    page = (tmp_path / "front/report.html").read_text()
    assert json.loads((tmp_path / "front/compare.json").read_text())["advice"]["sentence"].split(":")[0] in page
    assert "hessian-surgery compare --model smallnet" in page
    assert names(tmp_path / "figures") == {"front.svg", "front.png"}
    assert run("report", "front", "--html") == 0
    assert (tmp_path / "front/report.html").read_text() == page
    assert run("operate", *inputs, *SHORT, "--out", "run") == 0
    assert run("report", "run", "--compare", "front") == 2
    assert "add --html" in capsys.readouterr().err
    assert run("report", "run", "--html", "--compare", "front") == 0
    assert "The front: σ and worst class against accuracy" in (tmp_path / "run/report.html").read_text()
