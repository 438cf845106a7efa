"""Exported files answer as the patched model does, on every held-out sample."""

import json
import logging

import pytest
import torch
from torch import nn

import hessian_surgery as hs
from conftest import operate
from extras import extra
from hessian_surgery.model.classifier import call_module
from hessian_surgery.serve.trace import quiet

onnx = extra("onnx", "onnxscript", "onnxruntime")
KINDS = [pytest.param("model.pt2"), pytest.param("model.onnx", marks=onnx)]
TOKENS, LENGTH = 30, 7


class Words(nn.Module):
    """A small transformer: tokens and a mask to logits of three classes, in a dict."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.fc = nn.Linear(16, 3)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask.bool()
        read = self.encoder(self.embedding(input_ids), src_key_padding_mask=~mask)
        read = (read * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return {"logits": self.fc(read)}


def texts(counts, seed):
    """Texts of up to seven tokens; each class has tokens that it likes."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(3).repeat_interleave(torch.tensor(counts))
    liked = torch.rand(len(labels), LENGTH, generator=draw) < 0.4
    ids = torch.randint(1, TOKENS, (len(labels), LENGTH), generator=draw)
    ids = torch.where(liked, 1 + labels[:, None] * 8 + ids % 8, ids)
    mask = torch.arange(LENGTH) < torch.randint(3, LENGTH + 1, (len(labels), 1), generator=draw)
    return hs.as_labelled(({"input_ids": ids * mask, "attention_mask": mask.long()}, labels))


@pytest.fixture(scope="module")
def words():
    """The transformer, trained, and the parts of its data."""
    torch.manual_seed(0)
    net = Words()
    parts = [texts((150, 60, 20), 0), texts((150,) * 3, 1), texts((150,) * 3, 2)]
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(call_module(net, parts[0].inputs())["logits"], parts[0].labels).backward()
        optimizer.step()
    return net.eval(), dict(zip(("training_data", "calibration_data", "heldout_data"), parts, strict=True))


@pytest.mark.parametrize("name", KINDS)
def test_the_patched_digits_net_answers_the_same(name, trained, digits_parts, tmp_path):
    outcome = operate(trained, digits_parts, hs.SurgeryConfig(parameters="features.*"))
    assert outcome.findings.changed.weights > 1000
    found = hs.export(trained, tmp_path / name, digits_parts.heldout)
    assert (found.differing, found.samples) == (0, len(digits_parts.heldout))
    assert found.largest_difference < 1e-3
    assert "on all" in str(found)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", KINDS)
def test_the_patched_transformer_answers_the_same(name, words, tmp_path):
    net, parts = words
    hs.operate(net, **parts)
    found = hs.export(net, tmp_path / name, parts["heldout_data"])
    assert (found.differing, found.samples) == (0, 450)
    assert not net.training


def test_a_program_takes_any_batch_and_any_length(words, tmp_path):
    net, parts = words
    hs.export(net, tmp_path / "words.pt2", parts["heldout_data"])
    program = torch.export.load(tmp_path / "words.pt2").module()
    for count, length in ((1, 3), (5, 12)):
        ids = torch.randint(1, TOKENS, (count, length))
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        assert torch.allclose(program(**given), net(**given)["logits"], atol=1e-5)


@pytest.mark.parametrize("name", KINDS[1:])
def test_free_axes_of_an_onnx_file_have_names(name, words, tmp_path, caplog):
    import onnx

    net, parts = words
    hs.export(net, tmp_path / name, parts["heldout_data"])
    graph = onnx.load(tmp_path / name).graph
    axes = [[size.dim_param for size in given.type.tensor_type.shape.dim] for given in (*graph.input, *graph.output)]
    assert axes == [["batch", "length"], ["batch", "length"], ["batch", ""]]
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


def test_what_exporters_log_about_themselves_is_kept_back(caplog):
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    with quiet():
        log.warning("torchvision is not installed")
    log.warning("this is heard")
    assert [record.message for record in caplog.records] == ["this is heard"]


def test_a_model_that_takes_a_tuple_is_exported(tmp_path):
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, one, other):
            return self.fc(one + other)

    data = hs.as_labelled(((torch.randn(9, 4), torch.randn(9, 4)), torch.arange(9) % 3))
    assert hs.export(Sum(), tmp_path / "sum.pt2", data).differing == 0


def test_what_cannot_be_exported_is_refused_and_nothing_is_written(trained, digits_parts, tmp_path):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(64, 10)

        def forward(self, x):
            logits = self.fc(x.flatten(1))
            return logits if logits.sum().item() > 0 else -logits

    with pytest.raises(hs.InputError, match=r"^model: torch.export cannot trace it: [^\n]+$"):
        hs.export(Odd(), tmp_path / "odd.pt2", digits_parts.heldout)
    with pytest.raises(hs.InputError, match=r"out: got 'model.bin'; give a name that ends in \.onnx, or in \.pt2"):
        hs.export(trained, tmp_path / "model.bin", digits_parts.heldout)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "model.pt2").write_text("mine")
    with pytest.raises(hs.InputError, match=r"out: .*model.pt2 exists; give another name"):
        hs.export(trained, tmp_path / "model.pt2", digits_parts.heldout)


def test_a_file_that_answers_otherwise_is_told():
    found = hs.Agreement("model.onnx", 600, 3, 0.25, "images")
    assert str(found) == (
        "model.onnx gives another answer than the model on 3 of 600 images; logits differ by up to 0.25"
    )


@pytest.mark.usefixtures("own_folder")
def test_the_command_exports_a_run(run, trained, checkpoint, capsys, tmp_path):
    given = ("--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits", "--quick", "--out", "run")
    assert run("operate", *given) == 0
    capsys.readouterr()
    assert run("export", "run", "--out", "model.pt2", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["differing"], found["file"]) == (0, "model.pt2")
    assert run("export", "run", "--out", "again.pt2") == 0
    said = [line.partition(" · ")[0] for line in capsys.readouterr().err.splitlines()]
    assert said == ["exporting", "answers of the model", "checking the file 0/540"]
    assert run("export", "run", "--out", "new.pt2", "--from", "old.onnx") == 2
    assert "--from: it changes an ONNX file" in capsys.readouterr().err


def test_a_run_from_python_cannot_be_opened_again(run, trained, digits_parts, tmp_path, capsys):
    operate(trained, digits_parts, hs.SurgeryConfig(directions="biases")).save(tmp_path / "run")
    assert run("export", str(tmp_path / "run"), "--out", str(tmp_path / "model.pt2")) == 2
    assert "was made from Python; call hs.export there, where its model is" in capsys.readouterr().err
