from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from hessian_surgery.errors import InputError
from hessian_surgery.weights.patch import load_patch, make_patch

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool]


def same(one, other):
    return all(torch.equal(one[n].reshape(-1).view(torch.uint8), other[n].reshape(-1).view(torch.uint8)) for n in one)


@settings(deadline=None)
@given(seed=st.integers(0, 10**6), dtype=st.sampled_from(DTYPES), scale=st.floats(0, 10))
def test_a_patch_takes_there_and_back_bit_for_bit(seed, dtype, scale):
    draw = torch.Generator().manual_seed(seed)
    base = {name: (10 * torch.randn(4, 3, generator=draw)).to(dtype) for name in "abc"}
    if dtype.is_floating_point:
        base["a"][0, 0], base["b"][0, 0] = -0.0, float("nan")
    patched = {name: (t + scale * torch.randn(4, 3, generator=draw)).to(dtype) for name, t in base.items()}
    patch = make_patch(base, patched)
    assert same(patch.apply(base), patched)
    assert same(patch.revert(patched), base)


def test_only_what_changed_is_stored_and_files_keep_it(tmp_path):
    base = {"a": torch.ones(3), "b": torch.ones(2)}
    patch = make_patch(base, {"a": torch.ones(3), "b": torch.zeros(2)}, "abc", '{"a": 1}  ')
    assert list(patch.bits) == ["b"]
    patch.save(tmp_path / "patch.safetensors")
    loaded = load_patch(tmp_path / "patch.safetensors")
    assert (loaded.base_file, loaded.base_header) == ("abc", '{"a": 1}  ')
    assert torch.equal(loaded.apply(base)["b"], torch.zeros(2))


def test_a_damaged_patch_is_refused():
    base, patched = {"a": torch.ones(3)}, {"a": torch.zeros(3)}
    patch = make_patch(base, patched)
    for bits in ({"a": patch.bits["a"] ^ 1}, {"b": patch.bits["a"]}, {"a": patch.bits["a"][:2]}):
        damaged = replace(patch, bits=bits)
        with pytest.raises(InputError, match="it is damaged"):
            damaged.apply(base)
        with pytest.raises(InputError, match="it is damaged"):
            damaged.revert(patched)


def test_misuse_is_named(tmp_path):
    base, patched = {"a": torch.ones(3)}, {"a": torch.zeros(3)}
    patch = make_patch(base, patched)
    with pytest.raises(InputError, match="made for other weights than these; they are patched already"):
        patch.apply(patched)
    with pytest.raises(InputError, match="does not make these weights; they are the base already"):
        patch.revert(base)
    with pytest.raises(InputError, match=r"made for other weights than these$"):
        patch.apply({"a": torch.full((3,), 2.0)})
    with pytest.raises(InputError, match="both must be the same"):
        make_patch(base, {"a": torch.ones(3).half()})
    save_file(base, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="is not a patch"):
        load_patch(tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="is not a file; give a run's patch"):
        load_patch(tmp_path)


def test_counters_of_batch_norm_may_be_there_beside_the_weights():
    """A file of torch 0.4 lacks them, and the same weights in another file have them."""
    base, patched = {"bn.weight": torch.ones(3)}, {"bn.weight": torch.zeros(3)}
    patch = make_patch(base, patched)
    counter = {"bn.num_batches_tracked": torch.tensor(7)}
    assert same(patch.apply(base | counter), patched | counter)
    assert same(patch.revert(patched | counter), base | counter)
    with pytest.raises(InputError, match="other weights than these"):
        patch.apply(base | {"bn.bias": torch.ones(3)})
    with pytest.raises(InputError, match="they are patched already"):
        patch.apply(patched | counter)
