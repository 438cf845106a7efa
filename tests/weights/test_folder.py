"""Model folders: shards patched and reverted byte for byte, and nothing else touched."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import hessian_surgery as hs
from hessian_surgery.weights.apply_patch import apply_patch, revert_patch
from hessian_surgery.weights.checkpoint import read_checkpoint
from hessian_surgery.weights.folder import INDEX, as_text, from_text, weight_files
from hessian_surgery.weights.patch import load_patch, patch_of

NOTES = {"config.json": "{}", "tokenizer.json": '{"version": "1.0"}', "merges.txt": "a b\n"}


def write_folder(folder, weights, shards):
    """A folder like one of save_pretrained, with its tensors dealt out to so many shards."""
    folder.mkdir(parents=True)
    for name, text in NOTES.items():
        (folder / name).write_text(text)
    if shards == 1:
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        return
    places = {name: f"model-{i % shards + 1:05d}-of-{shards:05d}.safetensors" for i, name in enumerate(weights)}
    for file in set(places.values()):
        save_file({name: weights[name] for name in weights if places[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def contents(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def moved(weights):
    return {name: tensor + 1 if name == "layer.1" else tensor for name, tensor in weights.items()}


def some_weights(dtype=torch.float32, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return {f"layer.{i}": torch.randn(3, 4, generator=draw).to(dtype) for i in range(5)} | {"steps": torch.tensor(3)}


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    shards=st.integers(1, 4),
)
def test_apply_and_revert_give_back_every_byte(tmp_path_factory, seed, dtype, shards):
    place = tmp_path_factory.mktemp("folders")
    weights = some_weights(dtype, seed)
    write_folder(place / "base", weights, shards)
    source = read_checkpoint(place / "base")
    patch_of(source, weights, moved(weights)).save(place / "patch.safetensors")
    apply_patch(place / "base", place / "patch.safetensors", place / "patched")
    found = read_checkpoint(place / "patched").weights
    assert all(torch.equal(found[name], tensor) for name, tensor in moved(weights).items())
    assert contents(place / "patched").keys() == contents(place / "base").keys()
    revert_patch(place / "patched", place / "patch.safetensors", place / "again")
    assert contents(place / "again") == contents(place / "base")
    assert {path.name for path in place.iterdir()} == {"base", "patch.safetensors", "patched", "again"}


def test_the_modules_names_need_not_be_the_files(tmp_path):
    weights = some_weights()
    write_folder(tmp_path / "base", weights | {"unused": torch.ones(2)}, 2)
    source = read_checkpoint(tmp_path / "base")
    source = type(source)(**vars(source) | {"module_names": {name: f"net.{name}" for name in weights}})
    state, after = ({f"net.{n}": t for n, t in some.items()} for some in (weights, moved(weights)))
    assert source.dtypes == {name: tensor.dtype for name, tensor in state.items()}
    patch = patch_of(source, state, after)
    assert list(patch.bits) == ["layer.1"]
    patch.save(tmp_path / "patch.safetensors")
    apply_patch(tmp_path / "base", tmp_path / "patch.safetensors", tmp_path / "patched")
    found = read_checkpoint(tmp_path / "patched").weights
    assert torch.equal(found["layer.1"], weights["layer.1"] + 1)
    assert torch.equal(found["unused"], torch.ones(2))


def test_a_patch_for_a_folder_fits_its_single_file(tmp_path):
    weights = some_weights()
    write_folder(tmp_path / "base", weights, 1)
    patch_of(read_checkpoint(tmp_path / "base"), weights, moved(weights)).save(tmp_path / "patch.safetensors")
    apply_patch(tmp_path / "base/model.safetensors", tmp_path / "patch.safetensors", tmp_path / "new.safetensors")
    revert_patch(tmp_path / "new.safetensors", tmp_path / "patch.safetensors", tmp_path / "old.safetensors")
    assert (tmp_path / "old.safetensors").read_bytes() == (tmp_path / "base/model.safetensors").read_bytes()


def test_weights_that_would_be_out_of_date_are_left_out(tmp_path):
    weights = some_weights()
    write_folder(tmp_path / "base", weights, 2)
    for stale in ("pytorch_model.bin", "optimizer.pt", "other.safetensors", ".hidden"):
        (tmp_path / "base" / stale).write_bytes(b"old")
    (tmp_path / "base/checkpoint-500").mkdir()
    patch_of(read_checkpoint(tmp_path / "base"), weights, moved(weights)).save(tmp_path / "patch.safetensors")
    apply_patch(tmp_path / "base", tmp_path / "patch.safetensors", tmp_path / "patched")
    shards = {path.name for path in weight_files(tmp_path / "base")}
    assert set(contents(tmp_path / "patched")) == {*NOTES, *shards, INDEX}


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{}", "has no weight_map"),
        ('{"weight_map": {"a": "../secret.safetensors"}}', "must be .safetensors files beside it"),
        ('{"weight_map": {"a": "model.bin"}}', "must be .safetensors files beside it"),
        ('{"weight_map": {"a": "model-1.safetensors"}}', "has no model-1.safetensors"),
        ("[", "cannot be read as JSON"),
    ],
)
def test_a_bad_index_is_named(tmp_path, index, message):
    (tmp_path / INDEX).write_text(index)
    with pytest.raises(hs.InputError, match=message):
        read_checkpoint(tmp_path)


def test_weights_in_another_dtype_than_the_files_are_refused(tmp_path):
    weights = some_weights(torch.float16)
    write_folder(tmp_path / "base", weights, 2)
    wide = {name: tensor.float() for name, tensor in weights.items()}
    with pytest.raises(hs.InputError, match=r"operate with stored_as=source\.dtypes"):
        patch_of(read_checkpoint(tmp_path / "base"), wide, wide)


def test_pickled_weights_are_refused(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(hs.InputError, match="pickled weights, which could run code: refused"):
        read_checkpoint(tmp_path)


def test_what_cannot_be_done_is_said(tmp_path):
    weights = some_weights()
    write_folder(tmp_path / "base", weights, 2)
    patch_of(read_checkpoint(tmp_path / "base"), weights, moved(weights)).save(tmp_path / "patch.safetensors")
    with pytest.raises(hs.InputError, match="would be a folder"):
        apply_patch(tmp_path / "base", tmp_path / "patch.safetensors", tmp_path / "new.safetensors")
    with pytest.raises(hs.InputError, match="exists; give another name"):
        apply_patch(tmp_path / "base", tmp_path / "patch.safetensors", tmp_path / "base")
    with pytest.raises(hs.InputError, match=r"has no model\.safetensors"):
        read_checkpoint(tmp_path)
    with pytest.raises(hs.InputError, match="it is damaged"):
        from_text('{"../up.safetensors": "{}"}')
    assert from_text(as_text({"a.safetensors": "{}"})) == {"a.safetensors": "{}"}
    assert load_patch(tmp_path / "patch.safetensors").base_folder


def test_a_write_that_fails_leaves_nothing(tmp_path):
    weights = some_weights()
    write_folder(tmp_path / "base", weights, 2)
    patch_of(read_checkpoint(tmp_path / "base"), weights, moved(weights)).save(tmp_path / "patch.safetensors")
    apply_patch(tmp_path / "base", tmp_path / "patch.safetensors", tmp_path / "patched")
    shard = weight_files(tmp_path / "patched")[0]
    shard.write_bytes(shard.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(hs.InputError, match="does not make these weights"):
        revert_patch(tmp_path / "patched", tmp_path / "patch.safetensors", tmp_path / "again")
    assert not (tmp_path / "again").exists()
