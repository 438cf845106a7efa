import json
import subprocess
import sys
from collections import OrderedDict

import pytest
import torch
from safetensors.torch import load_file
from test_operate import check_contract

import hessian_surgery as hs
from hessian_surgery.model.smallnet import SmallNet

SHORT = ["--budget", "0.01", "--max-drop", "0.03", "--iterations", "1"]
LOOP = ["--preset", "loop", "--iterations", "2", "--hessian-samples", "64", "--amplitude", "0.02"]


pytestmark = pytest.mark.usefixtures("own_folder")


def test_demo(run, capsys, tmp_path):
    assert run("demo", "--out", "run", "--seed", "1") == 0
    captured = capsys.readouterr()
    assert "held-out images" in captured.out
    assert "σ" in captured.out
    assert "  1/1 accepted" in captured.err
    assert "protected (at most" in " ".join(captured.err.split())
    assert "Ended after 1 iteration, the most that is allowed." in captured.err
    result = json.loads((tmp_path / "run/result.json").read_text())
    check_contract(result, classes=10)
    assert result["verdict"]["sentence"].split()[0] in captured.out
    assert (tmp_path / "run/base.safetensors").exists()
    assert max(len(line) for line in (captured.out + captured.err).splitlines()) <= 80


@pytest.mark.parametrize("options", [SHORT, LOOP], ids=["default", "loop"])
def test_operate_prints_only_json_and_writes_the_folder(run, capsys, tmp_path, checkpoint, options):
    arguments = ["operate", "--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits", *options]
    assert run(*arguments, "--json", "--out", "run") == 0
    result = json.loads(capsys.readouterr().out)
    check_contract(result, classes=10)
    assert result == json.loads((tmp_path / "run/result.json").read_text())
    assert load_file(tmp_path / "run/model.safetensors")["fc.weight"].dtype == torch.float16
    assert run(*arguments, "--out", "run") == 2
    assert "out: run holds a finished run" in capsys.readouterr().err


def test_a_quick_look_moves_biases_alone(run, capsys, tmp_path, checkpoint):
    arguments = ["operate", "--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits", "--quick"]
    assert run(*arguments, "--dry-run", "--json") == 0
    cost = json.loads(capsys.readouterr().out)
    assert (cost["passes"], cost["gradients"], "front" in {stage["name"] for stage in cost["stages"]}) == (3, 0, False)
    assert run(*arguments, "--json", "--out", "run") == 0
    captured = capsys.readouterr()
    assert "a first look: biases alone are moved" in captured.err
    result = json.loads(captured.out)
    assert result["front"] is None
    assert result["choices"]["directions"] == "biases"
    changed = load_file(tmp_path / "run/patch.safetensors")
    assert {name for name in changed if "fc.bias" not in name} == set()
    assert 'id="front-data"' not in (tmp_path / "run/report.html").read_text(encoding="utf-8")
    for other in (["--directions", "both"], ["--preset", "loop"]):
        assert run(*arguments, *other, "--out", "other") == 2
        assert "quick: it moves biases alone" in capsys.readouterr().err


def test_operate_reaches_a_target_and_keeps_its_limits(run, capsys, tmp_path, checkpoint):
    arguments = ["operate", "--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits", "--json"]
    options = ["--target", "2=0.55,9=0.55", "--protect", "0, 5", "--max-drop", "0.05", "--budget", "0.01"]
    assert run(*arguments, *options, "--out", "run") == 0
    result = json.loads(capsys.readouterr().out)
    check_contract(result, classes=10)
    before, after = (result[when]["calibration"] for when in ("before", "after"))
    assert before["per_class"][2] < 0.55
    assert min(after["per_class"][2], after["per_class"][9]) >= 0.55
    assert after["accuracy"] >= before["accuracy"] - 0.01
    assert result["choices"]["protected"] == ["0", "5"]
    assert result["asked"] == {
        "aim": "sigma",
        "budget": 0.01,
        "targets": {"2": 0.55, "9": 0.55},
        "limits": {"0": 0.05, "5": 0.05},
    }
    kinds = [(promise["promise"], promise["class"]) for promise in result["promises"]]
    assert kinds == [("target", "2"), ("target", "9"), ("budget", None), ("limit", "0"), ("limit", "5")]
    assert "the targets 2 55 %, 9 55 % for at most 1 pp of accuracy" in result["verdict"]["sentence"]
    for name in result["choices"]["protected"]:
        assert after["per_class"][int(name)] >= before["per_class"][int(name)] - 0.05 - 1e-9
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert (config["algorithm"], config["targets"]) == ("default", {"2": 0.55, "9": 0.55})
    assert config["protect"] == ["0", "5"]
    assert (config["max_drop"], config["budget"], config["target"]) == (0.05, 0.01, "sigma")


def test_operate_with_the_papers_settings(run, capsys, tmp_path, checkpoint):
    arguments = ["operate", "--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits"]
    arguments += ["--preset", "paper:isic/class-balanced", "--lanczos-steps", "12", "--exponent", "auto", "--seed", "3"]
    assert run(*arguments, "--out", "run") == 0
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert (config["iterations"], config["search"]["lanczos_steps"], config["exponent"]) == (5, 12, "auto")
    assert (config["search"]["hessian_sampling"], config["seed"]) == ("stratified", 3)
    assert "have not converged" in capsys.readouterr().out.replace("\n", " ")


def test_calibration_images_may_be_training_images_and_the_run_says_so(run, capsys, checkpoint):
    """Section 9.2's calibration set; it is said once at the start, and again in the result."""
    inputs = ["--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits"]
    chosen = ["--calibration-data", "digits:train", "--preset", "paper:isic", "--iterations", "1"]
    assert run("operate", *inputs, *chosen, "--out", "run", "--json") == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert captured.err.count("the calibration images are training images, as was asked") == 1
    assert any(text.startswith("the calibration images are training") for text in result["warnings"])
    assert (result["split"]["calibration"], result["split"]["heldout"]) == (248, 1078)
    assert run("compare", *inputs, "--calibration-data", "digits:train", "--methods", "class-bias") == 2
    assert "images are in --training-data as well" in capsys.readouterr().err


@pytest.mark.parametrize("options", [SHORT, LOOP], ids=["default", "loop"])
def test_apply_and_revert_give_back_the_files(run, capsys, tmp_path, checkpoint, options):
    arguments = ["operate", "--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits", *options]
    assert run(*arguments, "--out", "run") == 0
    assert run("apply", checkpoint, "run/patch.safetensors", "--out", "patched.safetensors") == 0
    model = (tmp_path / "run/model.safetensors").read_bytes()
    assert (tmp_path / "patched.safetensors").read_bytes() == model
    assert model != (tmp_path / "base.safetensors").read_bytes()
    assert run("revert", "run/model.safetensors", "run/patch.safetensors", "--out", "again.safetensors") == 0
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "base.safetensors").read_bytes()


def test_a_file_of_old_torch_is_operated_on_applied_and_reverted(run, capsys, tmp_path, trained):
    """As public `.th` files are: from DataParallel, without BatchNorm's counters, no archive."""
    counted = ((name, t) for name, t in trained.state_dict().items() if not name.endswith("num_batches_tracked"))
    weights = OrderedDict((f"module.{name}", tensor) for name, tensor in counted)
    torch.save({"state_dict": weights, "best_prec1": 92.1}, "old.th", _use_new_zipfile_serialization=False)
    assert (
        run("operate", "--model", "smallnet", "--checkpoint", "old.th", "--data", "digits", *SHORT, "--out", "run") == 0
    )
    assert run("apply", "old.th", "run/patch.safetensors", "--out", "patched.th") == 0
    patched = torch.load("patched.th", weights_only=True)
    net = SmallNet(10)
    net.load_state_dict({name.removeprefix("module."): t for name, t in patched["state_dict"].items()})
    assert not torch.equal(net.fc.bias, trained.fc.bias)
    assert torch.equal(load_file("run/model.safetensors")["fc.bias"], net.fc.bias)
    assert run("revert", "patched.th", "run/patch.safetensors", "--out", "again.th") == 0
    assert (tmp_path / "again.th").read_bytes() == (tmp_path / "old.th").read_bytes()


def test_report_makes_every_statistic_again(run, capsys, tmp_path, checkpoint):
    arguments = ["operate", "--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits", *SHORT]
    assert run(*arguments, "--out", "run", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert run("report", "run", "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert {"verdict", "plain", "asked", "promises", "changed", "costs", "simpler", "tests", "deciles"} < set(again)
    assert again == {key: result[key] for key in again}
    assert run("report", "run") == 0
    text, note = capsys.readouterr()
    assert result["ended"] in " ".join(note.split())
    assert result["verdict"]["sentence"].split(":")[0] in text
    assert "predictions changed" in text
    assert result["asked"] | {"limits": 0} == {"aim": "sigma", "budget": 0.01, "targets": {}, "limits": 0}
    assert [promise["class"] for promise in result["promises"]] == [None, None, *result["choices"]["protected"]]
    assert "budget, at most 1 pp of accuracy lost: " in text
    assert max(len(line) for line in text.splitlines()) <= 80
    assert run("report", "run", "--markdown") == 0
    page = capsys.readouterr().out
    assert page.startswith("**")
    assert f"\n{result['ended']}\n" in page
    assert "| σ without sampling noise |" in page
    assert " protected classes, at most " in page
    assert "What was asked for" in (tmp_path / "run/report.html").read_text()
    assert all(f"\n| {digit} | " in page for digit in range(10))


def test_paper_preset_with_gamma_takes_ten_iterations(run, capsys, checkpoint):
    arguments = ["operate", "--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits"]
    assert run(*arguments, "--dry-run", "--json", "--preset", "paper", "--control", "gamma") == 0
    assert json.loads(capsys.readouterr().out)["products"] == 100


def test_diagnose(run, capsys, tmp_path, checkpoint):
    arguments = ["diagnose", "--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits"]
    assert run(*arguments) == 0
    quick = capsys.readouterr().out
    assert "Forecast: at least about σ without sampling noise" in quick
    assert "effective rank" not in quick
    assert run(*arguments, "--hessian-samples", "64", "--spikes", "auto") == 0
    text = capsys.readouterr().out
    assert "effective rank" in text
    assert "hessian-surgery compare" in " ".join(text.split())
    assert max(len(line) for line in (quick + text).splitlines()) <= 80
    assert run(*arguments, "--json", "--target", "worst", "--protect", "3", "--max-drop", "2pp", "--budget", "1pp") == 0
    forecast = json.loads(capsys.readouterr().out)["forecast"]
    assert forecast["asked"] == {"aim": "worst", "budget": 0.01, "targets": {}, "limits": {"3": 0.02}}
    assert run(*arguments, "--json", "--spikes", "4", "--epsilon", "0.05") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["sensitivity"]) == 4
    assert found["epsilon"] == 0.05
    differences = ["--sensitivity", "differences", "--preset", "loop"]
    assert run(*arguments, "--json", "--spikes", "4", "--epsilon", "0.05", *differences) == 0
    other = json.loads(capsys.readouterr().out)
    assert other["eigenvalues"] == found["eigenvalues"]
    assert other["sensitivity"] != found["sensitivity"]
    assert {path.name for path in tmp_path.iterdir()} == {"base.safetensors"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--hessian-samples", "64"], "--hessian-samples: got 64, but no spikes are sought; give --spikes auto"),
        (["--preset", "loop"], "preset: got loop, but no spikes are sought"),
        (["--dry-run"], "--dry-run: got True, but no spikes are sought"),
        (["--spikes", "all"], "spikes: got 'all'"),
        (["--spikes", "4", "--sensitivity", "differences"], "sensitivity: got 'differences', but it belongs to the"),
        (["--spikes", "4", "--preset", "loop", "--budget", "1pp"], "budget: got '1pp', but the loop has no use for it"),
    ],
)
def test_a_diagnosis_refuses_what_it_would_not_use(run, capsys, checkpoint, options, message):
    assert run("diagnose", "--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits", *options) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("command", ["operate", "diagnose"])
def test_dry_run_says_what_it_would_cost_and_writes_nothing(run, capsys, tmp_path, checkpoint, command):
    arguments = [command, "--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits", "--dry-run"]
    arguments += ["--preset", "loop", *(["--spikes", "auto"] if command == "diagnose" else [])]
    assert run(*arguments) == 0
    assert "Hessian products" in capsys.readouterr().out
    assert run(*arguments, "--json", "--lanczos-steps", "20") == 0
    cost = json.loads(capsys.readouterr().out)
    iterations = 15 if command == "operate" else 1
    assert cost["products"] == 20 * iterations
    assert (cost["passes"], cost["backward"]) == (2 * iterations + 2, iterations)
    assert run(*arguments, "--json", "--spikes", "9", "--sensitivity", "differences") == 0
    cost = json.loads(capsys.readouterr().out)
    assert (cost["passes"], cost["backward"]) == (19 * iterations + 2, 0)
    assert {path.name for path in tmp_path.iterdir()} == {"base.safetensors"}


def test_as_a_module_and_unknown_options():
    helped = subprocess.run([sys.executable, "-m", "hessian_surgery", "--help"], capture_output=True, text=True)
    assert helped.returncode == 0
    assert all(command in helped.stdout for command in ("demo", "operate", "diagnose"))
    wrong = subprocess.run([sys.executable, "-m", "hessian_surgery", "demo", "--sed"], capture_output=True, text=True)
    assert wrong.returncode == 2


@pytest.mark.parametrize("command", ["demo", "operate", "diagnose", "report", "apply", "revert"])
def test_help_of_every_command(run, capsys, command):
    assert run(command, "--help") == 0
    text = capsys.readouterr().out
    assert text.startswith("Usage:")
    assert "--help" in text


def test_version(run, capsys):
    assert run("--version") == 0
    assert capsys.readouterr().out == f"hessian-surgery {hs.__version__}\n"


def test_usage_errors_are_short(run, capsys):
    assert run("operate", "--iterations", "many", "--model", "smallnet") == 2
    assert len(capsys.readouterr().err.splitlines()) <= 4


def test_what_was_not_given_is_said(run, capsys):
    assert run("diagnose", "--model", "bad_inputs:own_weights", "--data", "digits") == 0
    assert "no --checkpoint, so the weights that bad_inputs:own_weights comes with are used" in capsys.readouterr().err
