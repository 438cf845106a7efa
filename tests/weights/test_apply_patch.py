import json
import zipfile
from collections import OrderedDict
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

import hessian_surgery as hs
from hessian_surgery.weights.apply_patch import apply_patch, revert_patch
from hessian_surgery.weights.checkpoint import read_checkpoint
from hessian_surgery.weights.patch import make_patch
from hessian_surgery.weights.tensorfile import (
    read_checked,
    read_header,
    read_tensors,
    save_checked,
    save_like,
    save_tensors,
)


def random_weights(draw, dtype, names):
    return {name: torch.randn(3, 5, generator=draw).to(dtype) for name in names}


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    names=st.lists(st.text(min_size=1, max_size=8).filter(lambda n: n != "__metadata__"), min_size=1, unique=True),
    note=st.text(max_size=10),
)
def test_apply_and_revert_give_back_the_same_bytes(tmp_path_factory, seed, dtype, names, note):
    folder = tmp_path_factory.mktemp("files")
    draw = torch.Generator().manual_seed(seed)
    base = random_weights(draw, dtype, names) | {"steps": torch.tensor(7)}
    patched = random_weights(draw, dtype, names) | {"steps": torch.tensor(7)}
    original, patch_file = folder / "base.safetensors", folder / "patch.safetensors"
    save_file(base, original, {"note": note})
    source = read_checkpoint(original)
    make_patch(base, patched, source.sha256, source.header).save(patch_file)
    apply_patch(original, patch_file, folder / "patched.safetensors")
    found = read_checkpoint(folder / "patched.safetensors")
    assert all(torch.equal(found.weights[n], t) for n, t in patched.items())
    assert found.metadata == source.metadata
    revert_patch(folder / "patched.safetensors", patch_file, folder / "again.safetensors")
    assert (folder / "again.safetensors").read_bytes() == original.read_bytes()


def test_a_header_that_another_program_wrote_is_kept(tmp_path):
    """Unsorted names and odd padding, which the safetensors library would not write."""
    weights = {"z": torch.arange(4.0), "a": torch.arange(3).half()}
    header = (
        json.dumps(
            {
                "z": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
                "__metadata__": {"by": "hand"},
                "a": {"dtype": "F16", "shape": [3], "data_offsets": [16, 22]},
            }
        )
        + " " * 13
    )
    save_like(tmp_path / "base.safetensors", header, weights)
    source = read_checkpoint(tmp_path / "base.safetensors")
    assert torch.equal(source.weights["a"], weights["a"])
    assert read_header(tmp_path / "base.safetensors") == header
    patch = make_patch(source.weights, {"z": torch.ones(4), "a": weights["a"]}, source.sha256, source.header)
    patch.save(tmp_path / "patch.safetensors")
    # Even from a copy of the patched weights that was saved again, with another header.
    save_file({"z": torch.ones(4), "a": weights["a"]}, tmp_path / "resaved.safetensors")
    revert_patch(tmp_path / "resaved.safetensors", tmp_path / "patch.safetensors", tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "base.safetensors").read_bytes()


def state(seed, prefix="module."):
    """Weights of a small net with BatchNorm, as torch before 0.4.1 wrote them."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.Linear(4, 2))
    kept = [(prefix + n, t + seed) for n, t in net.state_dict().items() if not n.endswith("num_batches_tracked")]
    return OrderedDict(kept)


def entries(path):
    """What a zip archive holds; its checksums are compared."""
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {entry.filename: archive.read(entry) for entry in archive.infolist()}


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda w: w,
        lambda w: {"optimizer": [torch.ones(3)], "state_dict": w, "best": 92.1, "again": w["module.0.weight"]},
    ],
)
def test_torch_files_come_back_byte_for_byte(tmp_path, wrap, legacy):
    base, patched = state(0), state(1)
    original, patch_file = tmp_path / "base.th", tmp_path / "patch.safetensors"
    torch.save(wrap(base), original, _use_new_zipfile_serialization=not legacy)
    source = read_checkpoint(original)
    assert next(iter(source.weights)) == "0.weight"
    plain = {name.removeprefix("module."): tensor for name, tensor in patched.items()}
    make_patch(source.weights, plain, source.sha256).save(patch_file)
    apply_patch(original, patch_file, tmp_path / "patched.th")
    now = torch.load(tmp_path / "patched.th", weights_only=True)
    assert now.keys() == wrap(base).keys()
    assert all(torch.equal(now.get("state_dict", now)[name], tensor) for name, tensor in patched.items())
    assert len((tmp_path / "patched.th").read_bytes()) == len(original.read_bytes())
    if not legacy:
        before, after = entries(original), entries(tmp_path / "patched.th")
        assert before.keys() == after.keys()
        assert before["base/data.pkl"] == after["base/data.pkl"]
    revert_patch(tmp_path / "patched.th", patch_file, tmp_path / "again.th")
    assert (tmp_path / "again.th").read_bytes() == original.read_bytes()


def test_names_that_share_values_in_a_torch_file_may_differ_afterwards(tmp_path):
    shared = torch.arange(3.0)
    torch.save({"a": shared, "b": shared, "c": torch.ones(1).expand(4)}, tmp_path / "base.pt")
    base = read_checkpoint(tmp_path / "base.pt").weights
    make_patch(base, {"a": torch.ones(3), "b": shared, "c": torch.arange(4.0)}).save(tmp_path / "patch.safetensors")
    apply_patch(tmp_path / "base.pt", tmp_path / "patch.safetensors", tmp_path / "patched.pt")
    now = torch.load(tmp_path / "patched.pt", weights_only=True)
    assert (now["a"].tolist(), now["b"].tolist(), now["c"].tolist()) == ([1, 1, 1], [0, 1, 2], [0, 1, 2, 3])
    revert_patch(tmp_path / "patched.pt", tmp_path / "patch.safetensors", tmp_path / "again.pt")
    again = torch.load(tmp_path / "again.pt", weights_only=True)
    assert all(torch.equal(again[name], base[name]) for name in base)


def test_other_files_are_refused_and_nothing_is_written(tmp_path):
    base, other = {"a": torch.ones(2)}, {"a": torch.full((2,), 3.0)}
    save_file(base, tmp_path / "base.safetensors")
    save_file(other, tmp_path / "other.safetensors")
    make_patch(base, {"a": torch.zeros(2)}).save(tmp_path / "patch.safetensors")
    out = tmp_path / "out.safetensors"
    with pytest.raises(hs.InputError, match="made for other weights"):
        apply_patch(tmp_path / "other.safetensors", tmp_path / "patch.safetensors", out)
    with pytest.raises(hs.InputError, match="does not make these weights"):
        revert_patch(tmp_path / "other.safetensors", tmp_path / "patch.safetensors", out)
    assert not out.exists()
    with pytest.raises(hs.InputError, match=r"out\.pt would be a \.safetensors file"):
        apply_patch(tmp_path / "base.safetensors", tmp_path / "patch.safetensors", tmp_path / "out.pt")
    with pytest.raises(hs.InputError, match="exists; give another name"):
        apply_patch(tmp_path / "base.safetensors", tmp_path / "patch.safetensors", tmp_path / "other.safetensors")


@pytest.mark.parametrize("emptied", ["base_file", "base_header"])
def test_a_patch_that_was_tampered_with_writes_no_other_bytes(tmp_path, emptied):
    base, patched = {"a": torch.ones(3)}, {"a": torch.zeros(3)}
    original, file = tmp_path / "base.safetensors", tmp_path / "patched.safetensors"
    save_file(base, original, {"note": "mine"})
    save_file(patched, file, {"note": "mine"})
    source = read_checkpoint(original)
    patch = make_patch(base, patched, source.sha256, source.header)
    other = {"base_file": "", "base_header": source.header.replace("mine", "ours")}
    replace(patch, **{emptied: other[emptied]}).save(tmp_path / "patch.safetensors")
    with pytest.raises(hs.InputError, match="does not give back the base file; nothing was written"):
        revert_patch(file, tmp_path / "patch.safetensors", tmp_path / "again.safetensors")
    assert not (tmp_path / "again.safetensors").exists()


def test_equal_contents_are_equal_bytes(tmp_path):
    tensors = {name: torch.arange(4.0) for name in ("b", "a")}
    metadata = {f'key {i} ü"\n': "ü\n" for i in range(20)}
    found = set()
    for i in range(5):
        save_tensors(tmp_path / f"{i}.safetensors", tensors, dict(reversed(metadata.items())) if i % 2 else metadata)
        found.add((tmp_path / f"{i}.safetensors").read_bytes())
        assert read_tensors(tmp_path / f"{i}.safetensors")[1] == metadata | {"format": "pt"}
    assert len(found) == 1


def test_every_flipped_bit_of_a_checked_file_is_noticed(tmp_path):
    path = tmp_path / "state.safetensors"
    save_checked(path, {"a": torch.arange(6.0), "b": torch.tensor([1, 2])}, {"identity": "x", "epochs": "3"})
    whole = path.read_bytes()
    read_checked(path)
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        # A bit of the padding, or of a name's letter that JSON reads alike, may change nothing.
        with suppress(SafetensorError, OSError, ValueError, KeyError):
            tensors, metadata = read_checked(path)
            assert metadata["identity"] == "x"
            assert tensors["a"].tolist() == list(range(6))
