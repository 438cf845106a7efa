import pytest
import torch
from safetensors.torch import save_file

import hessian_surgery as hs
from hessian_surgery.baselines.outputs import ModelOutputs, load_logits


def made_up():
    torch.manual_seed(0)
    return {"logits": torch.randn(6, 3), "labels": torch.arange(6) % 3, "training_counts": torch.tensor([7, 8, 9])}


@pytest.mark.parametrize("counts", [None, torch.tensor([5, 0, 2])])
def test_logits_come_back_as_they_were_saved(tmp_path, counts):
    tensors = made_up()
    outputs = ModelOutputs(("ant", "a bee", "c,d"), tensors["labels"], tensors["logits"], counts)
    outputs.save_logits(tmp_path / "logits.safetensors")
    found = load_logits(tmp_path / "logits.safetensors")
    assert found.classes == outputs.classes
    assert torch.equal(found.logits, outputs.logits)
    assert torch.equal(found.labels, outputs.labels)
    assert (found.training_counts is None) if counts is None else torch.equal(found.training_counts, counts)
    with pytest.raises(hs.InputError, match="there are no spikes: only logits were given"):
        found.family("spikes")


def test_a_file_without_class_names_is_enough(tmp_path):
    tensors = made_up()
    save_file({"logits": tensors["logits"].half(), "labels": tensors["labels"].int()}, tmp_path / "plain.safetensors")
    found = load_logits(tmp_path / "plain.safetensors")
    assert found.classes == ("0", "1", "2")
    assert (found.logits.dtype, found.labels.dtype) == (torch.float32, torch.int64)


def test_there_may_be_more_logits_than_classes(tmp_path):
    tensors = made_up() | {"training_counts": torch.tensor([4, 4]), "labels": torch.arange(6) % 2}
    save_file(tensors, tmp_path / "more.safetensors", {"classes": '["ant", "bee"]'})
    assert load_logits(tmp_path / "more.safetensors").classes == ("ant", "bee")


def without(name):
    return {key: value for key, value in made_up().items() if key != name}


@pytest.mark.parametrize(
    ("tensors", "classes", "message"),
    [
        (without("logits"), None, "has no 'logits'"),
        (without("labels"), None, "has no 'labels'"),
        (made_up() | {"logits": torch.ones(18)}, None, r"they must be \(N, C\) and whole numbers \(N,\)"),
        (made_up() | {"labels": torch.arange(5) % 3}, None, r"holds logits \(6, 3\) and labels torch.int64 \(5,\)"),
        (made_up() | {"labels": torch.zeros(6)}, None, "torch.float32"),
        (made_up() | {"logits": torch.full((6, 3), float("nan"))}, None, "NaN or infinite"),
        (made_up() | {"logits": torch.full((6, 3), float("inf"))}, None, "NaN or infinite"),
        (made_up() | {"labels": torch.arange(6) % 4}, None, "labels or 3 class names beyond its 3 logits"),
        (made_up() | {"labels": torch.arange(6) % 3 - 1}, None, "labels or 3 class names beyond"),
        ({"logits": torch.ones(0, 3), "labels": torch.ones(0).long()}, None, "labels or 3 class names beyond"),
        (made_up(), '["a", "b", "c", "d"]', "labels or 4 class names beyond its 3 logits"),
        (made_up(), '["a", "b"]', "labels or 2 class names beyond"),
        (
            made_up() | {"training_counts": torch.tensor([1, 2])},
            None,
            r"training_counts of shape \(2,\); they must be 3 counts",
        ),
    ],
)
def test_a_file_that_cannot_be_compared_is_refused(tmp_path, tensors, classes, message):
    path = tmp_path / "logits.safetensors"
    save_file(tensors, path, {"classes": classes} if classes else None)
    with pytest.raises(hs.InputError, match=f"^logits: .*{message}"):
        load_logits(path)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "text").write_text("not tensors")
    for name in ("text", "absent"):
        with pytest.raises(hs.InputError, match=f"^logits: .*{name} cannot be read as safetensors"):
            load_logits(tmp_path / name)
