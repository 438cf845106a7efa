"""Bad files and folders: exit code 2, one clear line, no traceback, no file left."""

import pickle
import resource
import subprocess
import sys

import pytest
import torch
from bad_inputs import refused
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

pytestmark = pytest.mark.usefixtures("own_folder")

MINE = "bad_inputs"


class Evil:
    def __reduce__(self):
        return (open, ("ran", "w"))


def truncated(path, weights):
    save_file(weights, path.with_suffix(".safetensors"))
    content = path.with_suffix(".safetensors").read_bytes()
    path.with_suffix(".safetensors").write_bytes(content[: len(content) // 2])
    return path.with_suffix(".safetensors")


def truncated_torch(path, weights):
    torch.save(weights, path)
    path.write_bytes(path.read_bytes()[:200])
    return path


def empty_file(path, weights):
    path.write_bytes(b"")
    return path


def old_format_cut(path, weights):
    torch.save(weights, path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:-100])
    return path


def odd_normalization(path, weights):
    save_file(weights, path.with_suffix(".safetensors"), {"normalize_mean": "grey", "normalize_std": "1,1,1"})
    return path.with_suffix(".safetensors")


def holding_code(path, weights):
    torch.save({"state_dict": weights, "evil": Evil()}, path)
    return path


def pickled(path, weights):
    path.write_bytes(pickle.dumps(Evil()))
    return path


def whole_module(path, weights):
    torch.save(nn.Linear(2, 2), path)
    return path


def other_shapes(path, weights):
    torch.save(weights | {"features.0.weight": torch.zeros(2, 2)}, path)
    return path


def with_nan(path, weights):
    torch.save(weights | {"fc.bias": torch.full((10,), float("nan"))}, path)
    return path


def too_few_outputs(path, weights):
    torch.save(weights | {"fc.weight": weights["fc.weight"][:7], "fc.bias": weights["fc.bias"][:7]}, path)
    return path


def wider(path, weights):
    torch.save(weights | {"fc.bias": weights["fc.bias"].double()}, path)
    return path


FILES = [
    (truncated, "it may be truncated"),
    (truncated_torch, "cannot be read, it may be truncated"),
    (empty_file, "cannot be read, it may be truncated"),
    (old_format_cut, "cannot be read, it may be truncated"),
    (odd_normalization, "they must be numbers"),
    (holding_code, "could run code: refused"),
    (pickled, "could run code: refused"),
    (whole_module, "could run code: refused"),
    (other_shapes, "has shape (2, 2)"),
    (with_nan, "holds NaN"),
    (too_few_outputs, "7 logits, but the data has 10 classes"),
    (wider, "does not fit into the model's torch.float32"),
]


@pytest.mark.parametrize(("spoil", "message"), FILES, ids=[spoil.__name__ for spoil, _ in FILES])
def test_checkpoints(run, capsys, tmp_path, checkpoint, spoil, message):
    path = spoil(tmp_path / "bad.pt", load_file(checkpoint))
    code = run("operate", "--model", "smallnet", "--checkpoint", str(path), "--data", "digits", "--out", "run")
    refused(code, capsys.readouterr(), message)
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def pictures(tmp_path):
    for split in ("train", "test"):
        for name in ("ant", "bee"):
            for n in range(4):
                path = tmp_path / "pictures" / split / name / f"{n}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (8, 8), (n, n, n)).save(path)
    return tmp_path / "pictures"


def test_a_test_part_that_is_missing(run, capsys, tmp_path, pictures):
    (pictures / "test").rename(pictures / "exam")
    code = run("operate", "--model", f"{MINE}:two_classes", "--data", f"imagefolder:{pictures}", "--out", "run")
    refused(code, capsys.readouterr(), "pictures has no test part; add one")
    code = run("operate", "--model", f"{MINE}:two_classes", "--data", str(pictures), "--out", "run")
    refused(code, capsys.readouterr(), "did you mean imagefolder:")


@pytest.mark.parametrize("fault", ["unreadable", "other size", "no images"])
def test_image_folders(run, capsys, tmp_path, pictures, fault):
    victim = pictures / "test" / "bee" / "2.png"
    if fault == "unreadable":
        victim.write_bytes(b"no image")
    elif fault == "other size":
        Image.new("RGB", (9, 8)).save(victim)
    else:
        for path in (pictures / "test" / "bee").iterdir():
            path.unlink()
    code = run("operate", "--model", f"{MINE}:two_classes", "--data", f"imagefolder:{pictures}", "--out", "run")
    messages = {
        "unreadable": "test/bee/2.png cannot be read as an image",
        "other size": "give --image-size",
        "no images": "class 'bee' has no sample",
    }
    refused(code, capsys.readouterr(), messages[fault])
    assert not (tmp_path / "run").exists()


def test_folders_of_other_runs(run, capsys, tmp_path, checkpoint):
    arguments = ["operate", "--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits", "--out", "run"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "history.jsonl").write_text("")
    refused(run(*arguments), capsys.readouterr(), "holds an unfinished run; give --resume")
    (tmp_path / "run" / "result.json").write_text("{}")
    refused(run(*arguments), capsys.readouterr(), "holds a finished run")
    refused(run("demo", "--out", "run"), capsys.readouterr(), "something other than a demo")
    refused(run("report", "nowhere"), capsys.readouterr(), "holds no finished run")


def test_patches_for_other_files(run, capsys, tmp_path, checkpoint):
    (tmp_path / "patch.safetensors").write_text("not a patch")
    code = run("apply", checkpoint, "patch.safetensors", "--out", "out.safetensors")
    refused(code, capsys.readouterr(), "patch: patch.safetensors cannot be read")
    code = run("revert", checkpoint, checkpoint, "--out", "out.safetensors")
    refused(code, capsys.readouterr(), "is not a patch of this program")
    assert not (tmp_path / "out.safetensors").exists()


def test_a_full_disk(tmp_path, checkpoint):
    """Files may not grow beyond 20 kB: the state after the first iteration does not fit."""
    command = [sys.executable, "-m", "hessian_surgery", "operate", "--model", "smallnet", "--checkpoint", checkpoint]
    done = subprocess.run(
        [*command, "--data", "digits", "--out", "run", "--iterations", "2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )
    assert done.returncode == 2, done.stderr
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "run").rglob("*.hessian-surgery"))
