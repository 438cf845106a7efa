"""Exported Hugging Face models answer as the patched ones do."""

import json

import pytest

import hessian_surgery as hs
from extras import extra

pytestmark = extra("transformers", "datasets", "onnx", "onnxscript", "onnxruntime")


@pytest.mark.parametrize("case", ["vit", "bert"])
def test_a_patched_folder_is_exported_by_the_command(case, folders, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    named = ("--model", f"hf:{folders / case}", "--data", f"hf:{folders / case}-data")
    assert run("operate", *named, "--out", "run", "--quick", "--budget", "5pp") == 0
    capsys.readouterr()
    for name in ("model.pt2", "model.onnx"):
        assert run("export", "run", "--out", name, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["differing"] == 0
        assert found["samples"] > 400


def test_biases_of_a_patched_folder_go_into_its_onnx_file(folders, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = hs.open_pretrained(folders / "vit")
    parts = before.parts(folders / "vit-data")
    hs.export(before.model, "served.onnx", parts["heldout_data"])
    named = ("--model", f"hf:{folders / 'vit'}", "--data", f"hf:{folders / 'vit'}-data")
    assert run("operate", *named, "--out", "run", "--quick", "--budget", "5pp") == 0
    capsys.readouterr()
    assert run("export", "run", "--from", "served.onnx", "--out", "patched.onnx") == 0
    assert "gives the model's answer on all" in capsys.readouterr().out
