import json
from html import unescape

import pytest
import torch
from safetensors.torch import load_file, save_file

from hessian_surgery.cli import compare
from hessian_surgery.comparison import saved_fronts
from hessian_surgery.comparison.advice import Advice
from hessian_surgery.data.sources import open_data
from hessian_surgery.data.splits import join_sets
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import predict
from hessian_surgery.model.smallnet import SmallNet
from hessian_surgery.report.comparison_page import comparison_page
from hessian_surgery.report.markdown import plain
from hessian_surgery.weights.checkpoint import load_weights, read_checkpoint

pytestmark = pytest.mark.usefixtures("own_folder")

SHORT = ["--splits", "2", "--budgets", "0,0.2pp", "--hessian-samples", "64"]
PAIRED = {"paired_vs_class_bias", "paired_vs_spikes"}
FIGURES = {"delta_accuracy", "sigma", "sigma_se", "sigma_spread", "worst", "balanced_accuracy"}


def inputs(checkpoint):
    return ["--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits"]


def test_json_is_one_object_with_the_documented_fields(run, capsys):
    assert run("compare", "--data", "digits", "--json", "--splits", "2", "--methods", "class-bias,spikes") == 0
    content = json.loads(capsys.readouterr().out)
    assert content["schema_version"] == 2
    assert (content["images"], content["splits"], len(content["classes"])) == (1078, 2, 10)
    assert content["budgets"] == [-0.003, -0.001, 0, 0.002, 0.005, 0.01]
    names = [(row["name"], row["budget"]) for row in content["methods"]]
    assert names == [("nothing", None)] + [(n, b) for n in ("class-bias", "spikes") for b in content["budgets"]]
    for row in content["methods"]:
        assert {"name", "budget", "splits", "seconds", "reason", "verdicts", *PAIRED, *FIGURES} <= row.keys()
        assert all(isinstance(row[name], float) for name in FIGURES)
        if row["name"] != "class-bias":
            low, high = row["paired_vs_class_bias"]["interval"]
            assert low <= row["paired_vs_class_bias"]["difference"] <= high
        assert row["reason"] is None
        judged = row["name"] == "class-bias" and row["budget"] >= 0
        assert sum(row["verdicts"].values()) == (row["splits"] if judged else 0)
    assert content["advice"]["method"] in ("nothing", "class-bias", "spikes")
    assert content["advice"]["sentence"]
    assert len(content["bias_shares"]["spikes"]) == 9
    assert content["base"]["accuracy"] == pytest.approx(0.7, abs=0.15)


@pytest.mark.full
def test_a_whole_operation_counts_its_verdicts(run, capsys, checkpoint):
    assert run("compare", *inputs(checkpoint), *SHORT, "--methods", "operate", "--json") == 0
    rows = [row for row in json.loads(capsys.readouterr().out)["methods"] if row["name"] == "operate"]
    assert [row["budget"] for row in rows] == [0, 0.002]
    assert [sum(row["verdicts"].values()) for row in rows] == [2, 2]


@pytest.mark.full
def test_every_method_is_held_to_the_goal_and_the_limits(run, capsys, checkpoint):
    """Class 3 is strong: free methods take from it, and protected ones hardly do."""
    methods = ["--methods", "class-bias,vector-scaling,operate", "--splits", "2", "--budgets", "2pp", "--json"]
    lost = {}
    for limits in ((), ("--target", "worst", "--protect", "3", "--max-drop", "0.5pp")):
        assert run("compare", *inputs(checkpoint), *methods, *limits) == 0
        content = json.loads(capsys.readouterr().out)
        assert all(row["largest_loss"]["class"] in content["classes"] for row in content["methods"])
        assert all(row["unlimited"] == "" for row in content["methods"])
        lost[len(limits) > 0] = content
    free, held = lost[False], lost[True]
    assert free["asked"]["protect"] is None
    assert (held["asked"]["aim"], held["asked"]["protect"], held["asked"]["max_drop"]) == ("worst", ["3"], 0.005)
    assert held["asked"]["sentence"] == "Every post-hoc method aims at a better worst class; 3 may lose 0.5 pp each."
    assert "the worst class's error" in held["advice"]["sentence"]
    note = "are about σ alone; the advice is about the worst class's error."
    assert [note in unescape(comparison_page(content)) for content in (free, held)] == [False, True]
    for name in ("class-bias", "vector-scaling", "operate"):
        one, other = (next(r for r in c["methods"] if r["name"] == name) for c in (free, held))
        assert one["sigma"] != other["sigma"]


@pytest.fixture
def finished(run, capsys, checkpoint):
    methods = "class-bias,vector-scaling,logit-adjustment,spikes"
    assert run("compare", *inputs(checkpoint), *SHORT, "--methods", methods, "--out", "front") == 0
    return capsys.readouterr()


def test_the_folder_holds_every_file(finished, tmp_path, run, capsys, checkpoint):
    folder = tmp_path / "front"
    assert {path.name for path in folder.iterdir()} == {
        *("compare.json", "compare.md", "front.svg", "front.png", "report.html"),
        *("logits.safetensors", "predictions.safetensors", "patch.safetensors"),
    }
    content = json.loads((folder / "compare.json").read_text())
    assert content["advice"]["sentence"] in " ".join(finished.out.split())
    assert plain(content["advice"]["sentence"]) in (folder / "compare.md").read_text()
    assert content["inputs"]["checkpoint"] == checkpoint
    page = (folder / "report.html").read_text()
    opening = page.partition("<section")[0]
    assert f"Model SmallNet ({checkpoint}); data digits, 1,078 images, SHA-256" in opening
    assert content["data"]["labelled"]["sha256"][:12] in opening
    assert f"{content['date'][:16].replace('T', ' ')} UTC" in opening
    assert "largest loss pp" in page
    assert (folder / "front.svg").read_text().startswith("<?xml")
    assert (folder / "front.png").stat().st_size > 10_000
    assert f"patch.safetensors: {content['advice']['method']}" in finished.err
    predictions = load_file(folder / "predictions.safetensors")
    assert predictions["spikes@0.002"].shape == (2, 1078)
    right = (predictions["nothing@None"] == predictions["labels"]).double().mean()
    assert float(right) == pytest.approx(content["base"]["accuracy"], abs=0.03)
    assert run("compare", *inputs(checkpoint), "--out", "front") == 2
    assert "out: front holds a finished comparison" in capsys.readouterr().err


def test_the_patch_makes_the_predictions_of_the_first_split(finished, tmp_path, run, checkpoint):
    """A few close calls may differ: the checkpoint's float16 rounds the patched weights."""
    assert run("apply", checkpoint, "front/patch.safetensors", "--out", "patched.safetensors") == 0
    module = SmallNet(10)
    load_weights(module, read_checkpoint(tmp_path / "patched.safetensors"))
    parts = open_data("digits", 0)
    images = join_sets(parts.calibration, parts.heldout)
    method = json.loads((tmp_path / "front/compare.json").read_text())["advice"]["method"]
    predictions = load_file(tmp_path / "front/predictions.safetensors")
    found = predict(Classifier(module.eval()), images)
    assert (found != predictions[f"{method}@0.002"][0]).sum() <= 3
    assert (found != predictions["nothing@None"][0]).sum() > 30
    assert run("revert", "patched.safetensors", "front/patch.safetensors", "--out", "back.safetensors") == 0
    assert (tmp_path / "back.safetensors").read_bytes() == (tmp_path / "base.safetensors").read_bytes()


@pytest.mark.full
def test_a_step_in_weight_space_is_a_patch_too(tmp_path, run, checkpoint, monkeypatch, capsys):
    monkeypatch.setattr(compare, "advise", lambda _: Advice("spikes", "by order"))
    assert run("compare", *inputs(checkpoint), *SHORT, "--methods", "spikes", "--out", "other") == 0
    assert "patch.safetensors: spikes" in capsys.readouterr().err
    assert run("apply", checkpoint, "other/patch.safetensors", "--out", "patched.safetensors") == 0
    base = load_file(checkpoint)
    patched = load_file(tmp_path / "patched.safetensors")
    assert not torch.equal(base["features.0.weight"], patched["features.0.weight"])


@pytest.mark.full
def test_one_step_on_the_final_part(run, capsys, checkpoint):
    options = [*SHORT[:4], "--methods", "one-step,one-step+bias", "--part", "final", "--json"]
    assert run("compare", *inputs(checkpoint), *options) == 0
    content = json.loads(capsys.readouterr().out)
    names = [(row["name"], row["budget"]) for row in content["methods"]]
    wanted = ("class-bias", "one-step", "one-step+class-bias")
    assert names == [("nothing", None)] + [(name, budget) for name in wanted for budget in (0.0, 0.002)]
    assert content["methods"][0]["sigma_spread"] == 0
    assert all(row["reason"] is None for row in content["methods"])


def test_no_patch_without_an_edit(run, capsys, tmp_path, checkpoint, monkeypatch):
    monkeypatch.setattr(compare, "advise", lambda _: Advice("nothing", "by order"))
    assert run("compare", *inputs(checkpoint), *SHORT, "--methods", "class-bias", "--out", "front") == 0
    assert "no patch: the model is best left as it is" in capsys.readouterr().err
    assert not (tmp_path / "front/patch.safetensors").exists()


def test_the_note_on_an_operation_names_all_that_must_be_the_same(run, capsys, checkpoint, monkeypatch):
    monkeypatch.setattr(compare, "advise", lambda _: Advice("operate", "by order"))
    assert run("compare", *inputs(checkpoint), *SHORT, "--methods", "class-bias", "--out", "front") == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "--directions refit makes it, with the same model and data and the same options: budget, target" in said


def test_what_is_kept_is_there_until_the_results_are(run, checkpoint, tmp_path, monkeypatch):
    front = tmp_path / "front"
    kept = [front / "splits-operate.safetensors", front / "splits-loop.safetensors"]

    def stopped(*_):
        raise KeyboardInterrupt

    arguments = ("compare", *inputs(checkpoint), *SHORT, "--methods", "class-bias", "--out", "front")
    with monkeypatch.context() as patch:
        patch.setattr(saved_fronts, "write_json", stopped)
        assert run(*arguments) == 130
    for path in kept:  # of entries that take no part any more
        path.touch()
    with monkeypatch.context() as patch:
        patch.setattr(saved_fronts, "write_json", stopped)
        assert run(*arguments) == 130
    assert all(path.exists() for path in kept)
    assert run(*arguments) == 0
    assert not any(path.exists() for path in kept)


@pytest.mark.full
def test_written_logits_are_read_again(finished, tmp_path, run, capsys):
    assert run("compare", "--logits", "front/logits.safetensors", *SHORT[:4], "--json", "--out", "again") == 0
    captured = capsys.readouterr()
    again = json.loads(captured.out)
    before = json.loads((tmp_path / "front/compare.json").read_text())
    assert again["classes"] == before["classes"]
    for name in ("nothing", "class-bias", "vector-scaling", "logit-adjustment"):
        for one, other in zip(*([r for r in c["methods"] if r["name"] == name] for c in (again, before)), strict=True):
            assert {k: one[k] for k in FIGURES} == {k: other[k] for k in FIGURES}
    assert "no patch: there is no model" in captured.err
    assert not (tmp_path / "again/patch.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "digits", "--methods", "magic"], "methods: got 'magic'; give some of nothing"),
        (["--data", "digits", "--methods", "spikes:x"], "methods: got 'spikes:x'"),
        (["--data", "digits", "--budgets", "x"], "budgets: got 'x'"),
        (
            ["--data", "digits", "--budgets", "100"],
            "budgets: got 100; write 100pp for so many",
        ),
        (["--data", "digits", "--splits", "0"], "splits: got 0; it must be at least 1"),
        (["--data", "digits", "--protect", "cat"], "protect: got 'cat'"),
        (["--data", "digits", "--preset", "loop", "--protect", "3"], "protect: got '3', but the loop has no use"),
        (["--logits", "logits.safetensors", "--target", "7=90%"], "target: got '7'"),
        (["--data", "digits", "--epochs", "0"], "epochs: got 0; it must be at least 1"),
        (["--data", "digits", "--spikes", "0"], "spikes: got 0"),
        (["--data", "digits", "--methods", "class-bias", "--device", "tpu9"], "device: 'tpu9' cannot be used"),
        (["--data", "mnist"], "model: missing; give --model and --checkpoint"),
        ([], "model: missing"),
        (["--data", "digits", "--checkpoint", "x.safetensors"], "model: missing"),
        (["--model", "smallnet", "--data", "digits"], "checkpoint: --model smallnet has no weights"),
        (["--logits", "logits.safetensors", "--methods", "spikes"], "methods: spikes needs the model"),
        (["--logits", "absent.safetensors"], "logits: absent.safetensors cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(run, capsys, tmp_path, arguments, message):
    save_file({"logits": torch.eye(4).repeat(9, 1), "labels": torch.arange(36) % 4}, "logits.safetensors")
    assert run("compare", *arguments, "--out", "front") == 2
    captured = capsys.readouterr()
    assert message in captured.err.replace("\n", " ")
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if not line.startswith("training a small net")]
    assert len(lines) == 1
    assert not (tmp_path / "front").exists()


def test_if_nothing_can_be_fitted_the_reason_is_told(run, capsys, tmp_path):
    labels = torch.tensor([0, 1, 2] * 11 + [0, 1, 3])
    save_file({"logits": torch.eye(4).repeat(9, 1), "labels": labels}, "single.safetensors")
    assert run("compare", "--logits", "single.safetensors", "--json", "--out", "front") == 0
    content = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    reason = "calibration data: class '3' has no sample"
    assert reason in content["advice"]["sentence"]
    assert content["methods"][1]["sigma"] is None
    assert f"failed: {reason}" in (tmp_path / "front/compare.md").read_text()


def test_logits_of_a_class_without_images_are_refused(run, capsys):
    save_file({"logits": torch.eye(4).repeat(9, 1), "labels": torch.arange(36) % 3}, "three.safetensors")
    assert run("compare", "--logits", "three.safetensors", "--json") == 2
    assert "logits: class '3' has no sample" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written(run, capsys, checkpoint):
    assert run("compare", *inputs(checkpoint), *SHORT, "--methods", "class-bias", "--out", "base.safetensors/x") == 2
    assert "cannot be written" in capsys.readouterr().err
