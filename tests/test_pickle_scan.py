"""Pickles that would crash, hang or fill memory are refused before anything is built."""

import collections
import io
import pickle
import struct
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hessian_surgery as hs
from hessian_surgery.data.readers.cifar import _load
from hessian_surgery.pickle_scan import scan_pickle
from hessian_surgery.weights.checkpoint import read_checkpoint

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(PLAIN, st.integers(0, 5))
def test_ordinary_pickles_pass_and_are_read_to_their_end(content, protocol):
    encoded = pickle.dumps(content, protocol)
    file = io.BytesIO(encoded + b"more")
    scan_pickle(file, len(encoded))
    assert file.tell() == len(encoded)


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_and_ordered_dicts_pass(protocol):
    content = {b"data": np.zeros((3, 4)), "o": collections.OrderedDict(a=[1] * 2000), "s": {1, 2}, "t": ("x",)}
    encoded = pickle.dumps(content, protocol)
    assert "x" in scan_pickle(io.BytesIO(encoded), len(encoded))


def laughs():
    """A tuple of two tuples of two tuples …: 60 instructions, 2^60 values."""
    value = (1,)
    for _ in range(60):
        value = (value, value)
    return pickle.dumps({"a": value})


BOMBS = {
    "deep": b"\x80\x02N" + b"\x85" * 10**6 + b".",
    "deep key, whose hash overflows the stack": b"\x80\x02}N" + b"\x85" * 10**6 + b"K\x01s.",
    "memo of 34 GB": b"\x80\x02Nr" + struct.pack("<I", 2**31 - 2) + b".",
    "billion laughs": laughs(),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_by_both_readers(tmp_path, name):
    (tmp_path / "batch").write_bytes(BOMBS[name])
    with pytest.raises(hs.InputError, match="cannot be read as a CIFAR file: it"):
        _load(tmp_path / "batch")
    torch.save({"w": torch.zeros(2)}, tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as old, zipfile.ZipFile(tmp_path / "bomb.pt", "w") as new:
        for entry in old.infolist():
            new.writestr(entry.filename, BOMBS[name] if entry.filename.endswith(".pkl") else old.read(entry))
    torch.save([], tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    whole = (tmp_path / "old.pth").read_bytes()
    (tmp_path / "old.pth").write_bytes(whole.replace(pickle.dumps([], 2), BOMBS[name], 1))
    (tmp_path / "lone.pt").write_bytes(BOMBS[name])
    for path in ("bomb.pt", "old.pth", "lone.pt"):
        with pytest.raises(hs.InputError, match="cannot be read, it may be truncated: it"):
            read_checkpoint(tmp_path / path)


def test_archives_that_grow_are_refused(tmp_path):
    torch.save({"w": torch.zeros(2_000_000)}, tmp_path / "plain.pt")
    for name, method in (("packed.pt", zipfile.ZIP_DEFLATED), ("packed.pth", zipfile.ZIP_LZMA)):
        with zipfile.ZipFile(tmp_path / "plain.pt") as old, zipfile.ZipFile(tmp_path / name, "w", method) as new:
            for entry in old.infolist():
                new.writestr(entry.filename, old.read(entry))
        with pytest.raises(hs.InputError, match="its parts are compressed"):
            read_checkpoint(tmp_path / name)
    torch.save({"w": torch.zeros(1).expand(10**10)}, tmp_path / "wide.pt")
    with pytest.raises(hs.InputError, match="'w' has 40,000,000,000 bytes, more than the file holds"):
        read_checkpoint(tmp_path / "wide.pt")
