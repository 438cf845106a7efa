"""Hugging Face models: opened, operated on, saved, and loaded again with the same logits."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import hessian_surgery as hs
from hessian_surgery.model.evaluation import compute_logits
from hugging_face_folders import needs_hf

pytestmark = needs_hf
QUICK = hs.SurgeryConfig(directions="biases", iterations=1)


def logits(model, data):
    return compute_logits(hs.Classifier(model), data)


@pytest.mark.parametrize("case", ["vit", "resnet", "bert"])
def test_a_patched_model_is_saved_and_loaded(folders, tmp_path, case):
    from transformers import AutoConfig

    pretrained = hs.open_pretrained(folders / case)
    parts = pretrained.parts(folders / f"{case}-data")
    noun = "texts" if case == "bert" else "images"
    assert {part.noun for part in parts.values()} == {noun}
    found = hs.diagnose(pretrained.model, **{k: v for k, v in parts.items() if k != "heldout_data"})
    assert found.noun == noun
    outcome = hs.operate(pretrained.model, **parts, config=hs.SurgeryConfig(iterations=1, budget=0.05))
    assert outcome.findings.changed.weights
    patched = logits(pretrained.model, parts["heldout_data"])
    pretrained.save(tmp_path / "patched")
    again = hs.open_pretrained(tmp_path / "patched")
    assert torch.equal(logits(again.model, parts["heldout_data"]), patched)
    assert list(AutoConfig.from_pretrained(tmp_path / "patched").id2label.values()) == list(found.classes)
    # The same from a run folder, in the shards of the original.
    outcome.save(tmp_path / "run", pretrained.checkpoint)
    shipped = hs.open_pretrained(tmp_path / "run/model")
    assert torch.equal(logits(shipped.model, parts["heldout_data"]), patched)
    assert {p.name for p in (tmp_path / "run/model").iterdir()} == {p.name for p in (folders / case).iterdir()}
    # Not even a run: the folder itself is as it was.
    assert not torch.equal(logits(hs.open_pretrained(folders / case).model, parts["heldout_data"]), patched)


def test_names_in_the_file_may_differ_from_the_models(folders):
    pretrained = hs.open_pretrained(folders / "vit")
    names = pretrained.checkpoint.module_names
    assert any(name != own for name, own in names.items())
    assert set(names.values()) == set(pretrained.model.state_dict())


def test_half_precision_files_keep_their_dtype(folders, tmp_path):
    shutil.copytree(folders / "bert", tmp_path / "half")
    for shard in (tmp_path / "half").glob("*.safetensors"):
        save_file({name: tensor.half() for name, tensor in load_file(shard).items()}, shard, {"format": "pt"})
    pretrained = hs.open_pretrained(tmp_path / "half")
    assert pretrained.model.dtype == torch.float32
    parts = pretrained.parts(folders / "bert-data")
    stored = pretrained.checkpoint.dtypes
    outcome = hs.operate(pretrained.model, **parts, config=QUICK, stored_as=stored)
    outcome.save(tmp_path / "run", pretrained.checkpoint)
    assert {t.dtype for s in (tmp_path / "run/model").glob("*.safetensors") for t in load_file(s).values()} == {
        torch.float16
    }
    again = hs.open_pretrained(tmp_path / "run/model").model
    assert torch.equal(logits(again, parts["heldout_data"]), logits(pretrained.model, parts["heldout_data"]))


def test_tensors_that_the_model_does_not_know_stay_in_the_file(folders, tmp_path):
    shutil.copytree(folders / "bert", tmp_path / "old")
    index = json.loads((tmp_path / "old/model.safetensors.index.json").read_text())
    shard = tmp_path / "old" / next(iter(index["weight_map"].values()))
    positions = {"bert.embeddings.position_ids": torch.arange(64)[None]}
    save_file(load_file(shard) | positions, shard, {"format": "pt"})
    index["weight_map"]["bert.embeddings.position_ids"] = shard.name
    (tmp_path / "old/model.safetensors.index.json").write_text(json.dumps(index))
    pretrained = hs.open_pretrained(tmp_path / "old")
    outcome = hs.operate(pretrained.model, **pretrained.parts(folders / "bert-data"), config=QUICK)
    outcome.save(tmp_path / "run", pretrained.checkpoint)
    assert torch.equal(
        load_file(tmp_path / "run/model" / shard.name)["bert.embeddings.position_ids"], *positions.values()
    )


def test_merged_weights_are_refused(tmp_path):
    from transformers import MixtralConfig, MixtralForSequenceClassification

    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = MixtralConfig(vocab_size=9, num_local_experts=2, num_key_value_heads=1, pad_token_id=0, **size)
    MixtralForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(hs.InputError, match=r"from several tensors of .*, so no patch would fit them"):
        hs.open_pretrained(tmp_path)


def test_data_without_names_gets_the_models(folders):
    import datasets

    pretrained = hs.open_pretrained(folders / "bert")
    data = datasets.Dataset.from_dict({"text": ["a b c", "parse the xml"], "label": [0, 1]})
    assert pretrained.labelled(data).classes[:2] == ("asyncio", "email")
    wrong = data.cast_column("label", datasets.ClassLabel(names=["email", "asyncio"]))
    with pytest.raises(hs.InputError, match="its class 0 is 'asyncio'"):
        pretrained.labelled(wrong)
    aligned = wrong.align_labels_with_mapping(pretrained.model.config.label2id, "label")
    assert pretrained.labelled(aligned).labels.tolist() == [1, 0]
    with pytest.raises(hs.InputError, match="is a single set"):
        pretrained.parts(data)


def test_numbers_beyond_the_models_outputs_are_refused(folders):
    import datasets

    data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [3, 11]})
    wanted = r"^data: its labels go up to 11, but the model has 10 outputs; number the classes from 0 to 9$"
    with pytest.raises(hs.InputError, match=wanted):
        hs.open_pretrained(folders / "bert").labelled(data)


def edited(folders, place, **changes):
    shutil.copytree(folders / "bert", place)
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | changes))
    return place


def test_what_is_no_trained_classifier_is_refused(folders, tmp_path):
    cases = [
        ({"architectures": ["BertForMaskedLM"]}, "holds BertForMaskedLM; it must be a model for image or sequence"),
        ({"problem_type": "multi_label_classification"}, "several labels at once"),
        ({"architectures": None}, "no named class"),
        ({"model_type": "made-up", "auto_map": {"AutoConfig": "evil.Config"}}, "cannot be loaded"),
    ]
    for number, (changes, message) in enumerate(cases):
        with pytest.raises(hs.InputError, match=message):
            hs.open_pretrained(edited(folders, tmp_path / str(number), **changes))
    for place, message in ((tmp_path, "has no config.json"), ("./no/such", "does not exist"), ("", "does not exist")):
        with pytest.raises(hs.InputError, match=message):
            hs.open_pretrained(place)


def test_code_in_a_folder_is_never_run(folders, tmp_path):
    mark = tmp_path / "ran"
    place = edited(folders, tmp_path / "evil", model_type="evil", auto_map={"AutoConfig": "evil.EvilConfig"})
    (place / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass EvilConfig: pass\n")
    with pytest.raises(hs.InputError, match="cannot be loaded"):
        hs.open_pretrained(place)
    assert not mark.exists()


def test_a_head_that_was_never_trained_is_refused(folders, tmp_path):
    shutil.copytree(folders / "bert", tmp_path / "headless")
    for shard in (tmp_path / "headless").glob("*.safetensors"):
        kept = {name: tensor for name, tensor in load_file(shard).items() if not name.startswith("classifier")}
        save_file(kept, shard, {"format": "pt"})
    with pytest.raises(hs.InputError, match=r"has no 'classifier[.]bias', so it is no trained classifier"):
        hs.open_pretrained(tmp_path / "headless")


def test_a_run_folder_says_where_its_model_is(tmp_path):
    (tmp_path / "run/model").mkdir(parents=True)
    for name in ("config.json", "model/config.json"):
        (tmp_path / "run" / name).write_text("{}")
    with pytest.raises(hs.InputError, match=r"is a run; give hf:.*run/model"):
        hs.open_pretrained(tmp_path / "run")
