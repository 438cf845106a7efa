import json

import pytest

pytestmark = pytest.mark.usefixtures("own_folder")

LOOP = ["--preset", "loop", "--iterations", "1", "--spikes", "2", "--hessian-samples", "64", "--amplitude", "0.02"]


@pytest.fixture
def arguments(checkpoint):
    return ["operate", "--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits", *LOOP]


def test_operate_in_folds_reports_on_all_labelled_images(run, capsys, tmp_path, arguments):
    (tmp_path / "easy.toml").write_text("maximum_drop = 1.0\n")
    assert run(*arguments, "--folds", "2", "--accept", "easy.toml", "--out", "run") == 0
    captured = capsys.readouterr()
    said = "The delivered step is the mean of 2 operations, each without one fold of the 1,078 images."
    assert said in " ".join(captured.out.split())
    assert "operating on 1078 images, without each of 2 folds in turn, which judges" in captured.err
    assert [line for line in captured.err.splitlines() if line.startswith("without")] == [
        "without fold 1 of 2",
        "without fold 2 of 2",
    ]
    assert captured.err.count("basis: ") == 1
    assert max(len(line) for line in captured.out.splitlines()) <= 80
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert sum(result["after"]["heldout"]["count"]) == 1078
    assert result["acceptance"]["failed"] == []
    assert run("report", "run", "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert again.pop("note") == result["split"]["note"]
    assert again == {key: result[key] for key in again}
    assert {"verdict", "promises", "tests", "costs", "deciles"} <= again.keys()
    assert run("card", "run") == 0
    card = capsys.readouterr().out
    assert said in card
    assert "--folds 2" in card
    assert run("report", "run", "--html", "--markdown") == 0
    assert said in capsys.readouterr().out


def test_criteria_are_held_against_the_answers_of_the_folds(run, capsys, tmp_path, arguments):
    (tmp_path / "hard.toml").write_text("minimum_accuracy = 1.0\n")
    assert run(*arguments, "--folds", "2", "--accept", "hard.toml", "--out", "run", "--json") == 3
    result = json.loads(capsys.readouterr().out)
    lowest = min(range(10), key=lambda j: result["after"]["heldout"]["per_class"][j])
    accuracy = 100 * result["after"]["heldout"]["per_class"][lowest]
    assert f"{lowest}: accuracy {accuracy:.1f} %, minimum_accuracy is 100 %" in result["acceptance"]["failed"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--folds", "5", "--heldout-data", "bad_inputs:pair"], "folds: got 5, and --heldout-data as well"),
        (["--folds", "1"], "folds: got 1; it must be at least 2"),
        (["--folds", "200"], "--calibration-data, in 200 folds: class '0' has 107 samples; give at least 200"),
        (["--folds", "1", "--dry-run"], "folds: got 1; it must be at least 2"),
    ],
)
def test_folds_that_cannot_be_made_are_refused(run, capsys, tmp_path, arguments, options, message):
    assert run(*arguments, *options, "--out", "run") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]
    assert not (tmp_path / "run").exists()


def test_a_dry_run_counts_the_operations(run, capsys, arguments):
    def cost(*options):
        assert run(*arguments, *options, "--dry-run", "--json") == 0
        return json.loads(capsys.readouterr().out)

    one, five = cost(), cost("--folds", "5")
    assert five["operations"] == 5
    assert five["products"] == 5 * one["products"]
    assert five["data_bytes"] == pytest.approx(2 * one["data_bytes"], rel=0.01)  # all images, not half of them
    assert run(*arguments, "--folds", "5", "--dry-run") == 0
    assert "operations" in capsys.readouterr().out


def test_a_leak_is_refused_in_one_line(run, capsys, arguments):
    options = ["--training-data", "bad_inputs:trained_on_test", "--out", "run"]
    assert run(*arguments, *options) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "--calibration-data: 538 images are in --training-data as well: index" in lines[0]
    assert "so leave them out of one of the two" in lines[0]
