"""Apply and revert patches on checkpoints: safetensors, torch files, and model folders."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hessian_surgery.errors import InputError
from hessian_surgery.files import written_beside
from hessian_surgery.weights.checkpoint import Checkpoint, find_state, plain_names, read_checkpoint, read_torch
from hessian_surgery.weights.folder import STALE, folder_sha256, from_text, save_folder
from hessian_surgery.weights.patch import load_patch
from hessian_surgery.weights.tensorfile import file_sha256, save_like, weights_sha256
from hessian_surgery.weights.torchfile import with_values


def apply_patch(base: Path, patch_file: Path, out: Path) -> None:
    """Apply the patch to the file or model folder `base` and write the patched one to `out`."""
    patch = load_patch(patch_file)
    checkpoint = read_checkpoint(base)
    _save(checkpoint, patch.apply(checkpoint.weights), out)


def revert_patch(patched: Path, patch_file: Path, out: Path) -> None:
    """Revert the patch on the file or model folder `patched` and write the base to `out`.

    The base file comes back byte for byte, and so do all shards of a folder. Only a torch file that
    something else than `apply` has patched, or that torch did not write, gives another file with
    the same weights.
    """
    patch = load_patch(patch_file)
    checkpoint = read_checkpoint(patched)
    weights = patch.revert(checkpoint.weights)
    if checkpoint.shards and patch.base_folder:
        _save(replace(checkpoint, shards=from_text(patch.base_folder)), weights, out)
        same = folder_sha256(out) == patch.base_file
    else:
        _save(replace(checkpoint, header=patch.base_header or checkpoint.header), weights, out)
        same = not patch.base_header or bool(checkpoint.shards) or file_sha256(out) == patch.base_file
    if not same:
        shutil.rmtree(out) if out.is_dir() else out.unlink()
        raise InputError(f"patch: reverting {patched} does not give back the base file; nothing was written")


def _save(source: Checkpoint, weights: dict[str, Any], out: Path) -> None:
    """Write weights as `source` holds its own: with its header, or in shards with theirs."""
    if out.exists():
        raise InputError(f"out: {out} exists; give another name")
    if source.shards:
        if out.suffix in STALE:
            raise InputError(f"out: {out.name} would be a folder, as {source.path} is; give a name without ending")
        save_folder(out, source.path, source.shards, weights)
        return
    header = source.header
    if (out.suffix == ".safetensors") != bool(header):
        kind = "a .safetensors" if header else "a torch (.pt)"
        raise InputError(f"out: {out.name} would be {kind} file; give a name with that ending")
    if header:
        save_like(out, header, weights)
        return
    with written_beside(out) as beside:
        beside.write_bytes(_filled(source.path, weights) or b"")
        if not _holds(beside, weights):
            content = read_torch(source.path)
            state = find_state(content, source.path)
            state.update({name: weights[plain] for name, plain in plain_names(state).items()})
            torch.save(content, beside)


def _filled(path: Path, weights: Mapping[str, Tensor]) -> bytes | None:
    """Return a torch file with these weights in place of its own; None if that cannot be done."""
    content = read_torch(path)
    state = find_state(content, path)
    try:
        with torch.no_grad():
            for name, plain in plain_names(state).items():
                state[name].copy_(weights[plain])
    except RuntimeError:  # a tensor whose elements share memory
        return None
    return with_values(path, content)


def _holds(path: Path, weights: Mapping[str, Tensor]) -> bool:
    """Say whether a torch file can be read and holds these weights."""
    try:
        return weights_sha256(read_checkpoint(path).weights) == weights_sha256(weights)
    except InputError:
        return False
