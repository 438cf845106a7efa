import json

import pytest
from PIL import Image

pytestmark = pytest.mark.usefixtures("own_folder")

QUICK = {
    "stability": ["--sizes", "32,64"],
    "bulk-walk": ["--steps", "2", "--length", "0.05", "--hessian-samples", "64"],
    "linearization": ["--epsilon", "0.05", "--hessian-samples", "64", "--strong-above", "85%"],
    "effective-rank": ["--epsilon", "0.05", "--spikes", "5"],
}


def inputs(checkpoint):
    return ["--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits"]


@pytest.mark.parametrize("name", QUICK)
def test_every_study_is_a_command_with_a_json_and_a_figure(run, capsys, tmp_path, checkpoint, name):
    assert run("study", name, *inputs(checkpoint), *QUICK[name], "--out", "lab", "--json") == 0
    captured = capsys.readouterr()
    content = json.loads(captured.out)
    assert content == json.loads((tmp_path / f"lab/{name}.json").read_text())
    assert content["study"] == name
    assert content["inputs"]["data"] == "digits"
    assert "basis: " in captured.err
    assert (tmp_path / f"lab/{name}.svg").read_text().startswith("<?xml")
    assert (tmp_path / f"lab/{name}.png").stat().st_size > 10_000


@pytest.mark.full
def test_the_spectrum_as_a_command(run, capsys, tmp_path, checkpoint):
    options = ["--loss", "class-balanced", "--hessian-samples", "64", "--density-steps", "15", "--probes", "2"]
    assert run("spectrum", *inputs(checkpoint), *options, "--vectors", "--out", "lab") == 0
    captured = capsys.readouterr()
    assert "9 of 9 have converged" in captured.out
    assert "basis: 38 vectors of 6,138 weights in float32, 0.9 MB on cpu" in captured.err
    content = json.loads((tmp_path / "lab/spectrum.json").read_text())
    assert len(content["eigenvalues"]) == 9
    assert len(content["density"]["nodes"]) == 2
    assert (tmp_path / "lab/vectors.safetensors").exists()
    tight = ["--basis", "disk", "--precision", "bfloat16", "--basis-memory", "0.001", "--no-density"]
    assert run("spectrum", *inputs(checkpoint), *tight, "--operator", "gauss-newton", "--out", "lab2") == 0
    content = json.loads((tmp_path / "lab2/spectrum.json").read_text())
    assert content["density"] is None
    assert content["memory"]["basis_bytes"] <= 1e6
    assert (content["memory"]["place"], content["memory"]["precision"]) == ("disk", "bfloat16")


def test_there_may_be_more_spikes_than_steps_of_the_density(run, capsys, checkpoint):
    options = ["--spikes", "9", "--density-steps", "8", "--probes", "1", "--hessian-samples", "32"]
    assert run("spectrum", *inputs(checkpoint), *options, "--out", "lab") == 0
    assert "9 of 9 have converged" in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.parametrize("name", QUICK)
def test_every_study_keeps_its_basis_as_asked_for(run, capsys, checkpoint, name):
    tight = ["--basis", "disk", "--precision", "bfloat16", "--basis-memory", "0.0003", "--spikes", "3"]
    quick = ["--sizes", "32"] if name == "stability" else ["--hessian-samples", "32"]
    quick += ["--steps", "1"] if name == "bulk-walk" else []
    assert run("study", name, *inputs(checkpoint), *quick, *tight, "--out", "lab") == 0
    assert "basis: 15 vectors of 6,138 weights in bfloat16, 0.2 MB on disk in" in capsys.readouterr().err


@pytest.mark.full
def test_no_study_asks_for_images_that_it_does_not_use(run, capsys, checkpoint):
    model = ["--model", "smallnet", "--checkpoint", checkpoint, "--training-data", "digits", "--spikes", "2"]
    assert run("spectrum", *model, "--no-density", "--out", "lab") == 0
    assert run("study", "stability", *model, "--sizes", "32", "--out", "lab") == 0
    capsys.readouterr()
    assert run("study", "effective-rank", *model, "--out", "lab") == 2
    assert "data: missing; give it, or --calibration-data" in capsys.readouterr().err
    assert run("study", "effective-rank", *model, "--calibration-data", "digits", "--out", "lab") == 0
    assert run("diagnose", *model, "--calibration-data", "digits") == 0


def test_images_that_are_not_normalised_are_told_wherever_they_come_from(run, capsys, tmp_path):
    for name in ("ant", "bee"):
        for n in range(2):
            path = tmp_path / "pictures" / name / f"{n}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (n, n, n)).save(path)
    options = ["--training-data", "imagefolder:pictures", "--no-density", "--out", "lab"]
    assert run("spectrum", "--model", "bad_inputs:two_classes", *options) == 0
    assert "note: images are scaled to [0, 1] and not normalised" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["study", "gravity"], "No such command 'gravity'"),
        (["study", "stability", "--length", "1"], "No such option: --length"),
        (["study", "stability", "--sizes", "a,b"], "sizes: got 'a,b'; give whole numbers"),
        (["study", "stability", "--sizes", "9999"], "sizes: got 9999"),
        (["study", "bulk-walk", "--parameters", "nothing*"], "parameters: no trainable parameter matches"),
        (["study", "stability", "--lanczos-steps", "9"], "No such option: --lanczos-steps"),
        (["study", "stability", "--hessian-samples", "9"], "No such option: --hessian-samples"),
        (["study", "linearization", "--steps", "9"], "No such option: --steps"),
        (["study", "bulk-walk", "--lanczos-steps", "0"], "--lanczos-steps: got 0"),
        (["study", "effective-rank", "--basis", "tape"], "basis: got 'tape'; it must be one of auto, device, host"),
        (["study", "bulk-walk", "--basis-memory", "0.0001"], "--basis-memory: got 0.1 MB, and 9 spikes need 0.3 MB"),
        (["study", "predictors", "--spikes", "9"], "No such option: --spikes"),
        (["spectrum", "--no-density", "--probes", "5"], "probes: got 5, but --no-density has no use for it"),
        (["spectrum", "--no-density", "--density-steps", "5"], "--density-steps: got 5, but --no-density has no use"),
        (["spectrum", "--operator", "fisher"], "operator: got 'fisher'"),
        (["spectrum", "--basis", "tape"], "basis: got 'tape'; it must be one of auto, device, host"),
        (["spectrum", "--precision", "int8"], "precision: got 'int8'; it must be one of auto, full"),
        (["spectrum", "--loss", "hinge"], "loss: got 'hinge'"),
        (["spectrum", "--basis-memory", "0.0001"], "--basis-memory: got 0.1 MB, and 9 spikes need 0.3 MB"),
        (["spectrum", "--spikes", "7000"], "spikes: got 7000, but there are only 6138 weights"),
        (["spectrum", "--probes", "0"], "probes: got 0"),
        (["spectrum", "--tolerance", "-1"], "tolerance: got -1"),
        (["spectrum", "--hessian-samples", "0"], "--hessian-samples: got 0"),
        (["spectrum", "--calibration-data", "digits"], "--calibration-data: spectrum has no use for it"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(run, capsys, tmp_path, checkpoint, arguments, message):
    assert run(*arguments, *inputs(checkpoint), "--out", "lab") == 2
    captured = capsys.readouterr()
    assert message in captured.err.replace("\n", " ")
    assert captured.out == ""
    assert not (tmp_path / "lab").exists()


def test_every_study_has_a_name_in_the_help(run, capsys):
    assert run("study", "--help") == 0
    text = capsys.readouterr().out
    assert all(name in text for name in (*QUICK, "predictors"))
