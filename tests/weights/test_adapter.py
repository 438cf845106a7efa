"""LoRA and DoRA: only the adapter moves, the patch is for its file, merging answers the same."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import hessian_surgery as hs
from extras import extra
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.weights.adapter import is_adapted, own_names, own_state
from hessian_surgery.weights.apply_patch import apply_patch, revert_patch
from hessian_surgery.weights.checkpoint import read_checkpoint
from hugging_face import make_dataset, save_model

pytestmark = extra("peft", "transformers", "datasets")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A folder with a tiny BERT, and the parts of a text set."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("text")
    dataset = make_dataset()
    save_model(folder, dataset)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    columns = ["input_ids", "attention_mask", "label"]
    tokens = dataset.map(lambda rows: tokenizer(rows["text"], padding="max_length", max_length=8), batched=True)
    tokens = tokens.with_format("torch", columns=columns)
    calibration, heldout = hs.stratified_split(hs.as_labelled(tokens["test"]))
    return folder, {
        "training_data": hs.as_labelled(tokens["train"]),
        "calibration_data": calibration,
        "heldout_data": heldout,
    }


def adapted(folder, dora=False):
    """The BERT with an adapter, as training leaves one."""
    from peft import LoraConfig, TaskType, get_peft_model
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(0)
    base = AutoModelForSequenceClassification.from_pretrained(folder)
    settings = LoraConfig(
        task_type=TaskType.SEQ_CLS, r=2, target_modules=["query", "value"], use_dora=dora, init_lora_weights=False
    )
    return get_peft_model(base, settings).eval()


@pytest.mark.parametrize("dora", [False, True])
def test_only_the_adapter_moves_and_merging_it_answers_the_same(dora, text, tmp_path):
    folder, parts = text
    model = adapted(folder, dora)
    model.save_pretrained(tmp_path / "before")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config = hs.SurgeryConfig(parameters="*lora*", directions="both")
    outcome = hs.operate(model, **parts, config=config)
    moved = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])]
    assert len(moved) == (6 if dora else 4)
    assert all("lora_" in name for name in moved)
    assert all("lora_" in name for name in outcome.patch().bits)
    assert outcome.findings.changed.of < 300
    answers = compute_logits(hs.Classifier(model), parts["heldout_data"])
    merged = compute_logits(hs.Classifier(model.merge_and_unload()), parts["heldout_data"])
    assert torch.allclose(merged, answers, atol=1e-4)
    assert torch.equal(merged.argmax(1), answers.argmax(1))


def test_the_patch_is_for_the_adapters_file_and_reverts_it_byte_for_byte(text, tmp_path):
    folder, parts = text
    model = adapted(folder)
    model.save_pretrained(tmp_path / "before")
    outcome = hs.operate(model, **parts)
    outcome.save(tmp_path / "run")
    model.save_pretrained(tmp_path / "after")
    name = "adapter_model.safetensors"
    patch = tmp_path / "run/patch.safetensors"
    apply_patch(tmp_path / "before" / name, patch, tmp_path / "applied.safetensors")
    wanted = load_file(tmp_path / "after" / name)
    for got in (load_file(tmp_path / "applied.safetensors"), load_file(tmp_path / "run/model.safetensors")):
        assert got.keys() == wanted.keys()
        assert all(torch.equal(got[key], wanted[key]) for key in wanted)
    revert_patch(tmp_path / "applied.safetensors", patch, tmp_path / "reverted.safetensors")
    assert Path(tmp_path / "reverted.safetensors").read_bytes() == Path(tmp_path / "before" / name).read_bytes()


def test_what_is_not_the_adapters_is_refused(text):
    folder, parts = text
    model = adapted(folder)
    model.requires_grad_(True)
    with pytest.raises(hs.InputError, match=r"parameters: .* would move, but it is not the adapter's; freeze it"):
        hs.operate(model, **parts)
    model.requires_grad_(False)
    with pytest.raises(hs.InputError, match="load the adapter with is_trainable=True"):
        hs.operate(model, **parts)


@pytest.mark.parametrize("dora", [False, True])
def test_a_merged_adapter_is_refused_until_it_is_unmerged(text, dora):
    folder, parts = text
    parts = {name: part for name, part in parts.items() if name != "heldout_data"}
    model = adapted(folder, dora)
    model.merge_adapter()
    with pytest.raises(hs.InputError, match=r"^model: its adapter is merged .*; call unmerge_adapter\(\) first$"):
        hs.diagnose(model, **parts)
    model.unmerge_adapter()
    hs.diagnose(model, **parts)
    merged = model.merge_and_unload()
    merged.requires_grad_(True)
    hs.diagnose(merged, **parts)


def test_an_adapters_folder_is_known_and_its_file_asked_for(text, tmp_path):
    folder, _ = text
    adapted(folder).save_pretrained(tmp_path / "lora")
    with pytest.raises(hs.InputError, match=r"^model: .*lora holds a peft adapter, .* after merge_and_unload\(\)$"):
        hs.open_pretrained(tmp_path / "lora")
    with pytest.raises(
        hs.InputError, match=r"^checkpoint: .* holds a peft adapter; give its file, .*lora/adapter_model"
    ):
        read_checkpoint(tmp_path / "lora")


def test_a_plain_module_is_stored_whole():
    net = nn.Linear(2, 3)
    assert not is_adapted(net)
    assert own_state(net).keys() == {"weight", "bias"}
    assert own_names(net) == {"weight": "weight", "bias": "bias"}
