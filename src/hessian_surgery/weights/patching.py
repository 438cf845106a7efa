"""Applying and reverting a patch on checkpoint files: safetensors byte for byte, torch files tensor for tensor."""

from pathlib import Path
from typing import Any

import torch

from hessian_surgery.errors import InputError
from hessian_surgery.files import written_beside
from hessian_surgery.weights.checkpoint import Checkpoint, find_state, read_checkpoint, read_torch
from hessian_surgery.weights.patch import load_patch
from hessian_surgery.weights.tensorfile import file_sha256, save_like


def apply_patch(base: Path, patch_file: Path, out: Path) -> None:
    """Write the patched file that belongs to `base`."""
    patch, checkpoint = load_patch(patch_file), read_checkpoint(base)
    _save(checkpoint, patch.apply(checkpoint.weights), checkpoint.header, out)


def revert_patch(patched: Path, patch_file: Path, out: Path) -> None:
    """Write the file that the patch was made for: for safetensors, the very bytes; a torch file from a torch file."""
    patch, checkpoint = load_patch(patch_file), read_checkpoint(patched)
    weights = patch.revert(checkpoint.weights)
    _save(checkpoint, weights, patch.base_header or checkpoint.header, out)
    if patch.base_header and patch.base_file and file_sha256(out) != patch.base_file:
        out.unlink()
        raise InputError(f"patch: reverting {patched} does not give the file it was made from; nothing was written")


def _save(source: Checkpoint, weights: dict[str, Any], header: str, out: Path) -> None:
    if out.exists():
        raise InputError(f"out: {out} exists; give another name")
    if (out.suffix == ".safetensors") != bool(header):
        kind = "a .safetensors" if header else "a torch (.pt)"
        raise InputError(f"out: {out.name} would be {kind} file; give it such a name")
    if header:
        save_like(out, header, weights)
        return
    content = read_torch(source.path)
    state = find_state(content, source.path)
    for name in state:
        state[name] = weights[name.removeprefix("module.")]
    with written_beside(out) as beside:
        torch.save(content, beside)
