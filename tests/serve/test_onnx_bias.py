"""A patch of biases is one change to an ONNX file; ONNX Runtime then gives the patched answers."""

from pathlib import Path

import pytest

import hessian_surgery as hs
from conftest import operate
from extras import extra
from hessian_surgery.model.smallnet import smallnet
from hessian_surgery.weights.checkpoint import load_weights, read_checkpoint

pytestmark = extra("onnx", "onnxscript", "onnxruntime")


@pytest.fixture
def files(trained, digits_parts, tmp_path):
    """A folder with the starting model as ONNX, and a run that moved biases alone."""
    hs.export(trained, tmp_path / "old.onnx", digits_parts.heldout)
    operate(trained, digits_parts, hs.SurgeryConfig(directions="biases")).save(tmp_path / "run")
    return tmp_path


def test_one_initializer_changes_and_the_answers_are_the_patched_models(files, trained, digits_parts):
    import onnx
    from onnx import numpy_helper

    name = hs.patch_onnx(files / "old.onnx", files / "run", files / "new.onnx")
    old, new = (onnx.load(files / f"{which}.onnx") for which in ("old", "new"))
    changed = [
        one.name
        for one, other in zip(old.graph.initializer, new.graph.initializer, strict=True)
        if numpy_helper.to_array(one).tobytes() != numpy_helper.to_array(other).tobytes()
    ]
    assert changed == [name]
    assert name.endswith("fc.bias")
    assert list(old.graph.node) == list(new.graph.node)
    found = hs.check_onnx(files / "new.onnx", trained, digits_parts.heldout)
    assert (found.differing, found.samples) == (0, len(digits_parts.heldout))
    assert hs.check_onnx(files / "old.onnx", trained, digits_parts.heldout).differing > 0


def test_the_old_exporters_file_will_do(trained, digits_parts, tmp_path):
    """Whatever wrote the file: the biases are found by their values."""
    import onnx

    hs.export(trained, tmp_path / "old.onnx", digits_parts.heldout)
    content = onnx.load(tmp_path / "old.onnx")
    bias = next(one for one in content.graph.initializer if one.name.endswith("fc.bias"))
    for node in content.graph.node:
        node.input[:] = ["b1" if name == bias.name else name for name in node.input]
    bias.name = "b1"
    onnx.save(content, tmp_path / "other.onnx")
    operate(trained, digits_parts, hs.SurgeryConfig(directions="biases")).save(tmp_path / "run")
    assert hs.patch_onnx(tmp_path / "other.onnx", tmp_path / "run", tmp_path / "new.onnx") == "b1"
    assert hs.check_onnx(tmp_path / "new.onnx", trained, digits_parts.heldout).differing == 0


def test_other_files_and_runs_are_refused(files, trained, digits_parts):
    hs.patch_onnx(files / "old.onnx", files / "run", files / "new.onnx")
    with pytest.raises(hs.InputError, match="no initializer with the biases that the run started from"):
        hs.patch_onnx(files / "new.onnx", files / "run", files / "again.onnx")
    (files / "bad.onnx").write_bytes(b"nothing")
    with pytest.raises(hs.InputError, match="cannot be read as an ONNX file"):
        hs.patch_onnx(files / "bad.onnx", files / "run", files / "again.onnx")
    with pytest.raises(hs.InputError, match="cannot be read by ONNX Runtime"):
        hs.check_onnx(files / "bad.onnx", trained, digits_parts.heldout)
    net = hs.train_smallnet(digits_parts.training, seed=0)
    outcome = operate(net, digits_parts, hs.SurgeryConfig(parameters="features.*"))
    outcome.save(files / "whole")
    assert len(outcome.patch().bits) > 1
    with pytest.raises(hs.InputError, match="not biases alone; export the whole model instead"):
        hs.patch_onnx(files / "old.onnx", files / "whole", files / "again.onnx")
    assert not (files / "again.onnx").exists()


@pytest.mark.usefixtures("own_folder")
def test_the_command_changes_the_file_and_checks_it(run, checkpoint, capsys):
    net = smallnet(10)
    load_weights(net, read_checkpoint(Path(checkpoint)))
    hs.export(net.eval(), "old.onnx", hs.digits().test)
    given = ("--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits", "--quick", "--out", "run")
    assert run("operate", *given) == 0
    capsys.readouterr()
    assert run("export", "run", "--from", "old.onnx", "--out", "new.onnx") == 0
    said = capsys.readouterr()
    assert "new.onnx gives the model's answer on all" in said.out
    assert "and nothing else" in said.err
    assert run("export", "run", "--from", "new.onnx", "--out", "again.onnx") == 2
    assert "error: --from: new.onnx has no initializer with the biases" in capsys.readouterr().err
