"""Apply and revert patches on checkpoint files: safetensors, and the tensors of torch files."""

from pathlib import Path
from typing import Any

import torch

from hessian_surgery.errors import InputError
from hessian_surgery.files import written_beside
from hessian_surgery.weights.checkpoint import Checkpoint, find_state, read_checkpoint, read_torch
from hessian_surgery.weights.patch import load_patch
from hessian_surgery.weights.tensorfile import file_sha256, save_like


def apply_patch(base: Path, patch_file: Path, out: Path) -> None:
    """Apply the patch to the file `base` and write the patched file to `out`."""
    patch = load_patch(patch_file)
    checkpoint = read_checkpoint(base)
    _save(checkpoint, patch.apply(checkpoint.weights), checkpoint.header, out)


def revert_patch(patched: Path, patch_file: Path, out: Path) -> None:
    """Revert the patch on the file `patched` and write the base file to `out`.

    A safetensors file comes back byte for byte; a torch file gives a torch file.
    """
    patch = load_patch(patch_file)
    checkpoint = read_checkpoint(patched)
    weights = patch.revert(checkpoint.weights)
    _save(checkpoint, weights, patch.base_header or checkpoint.header, out)
    if patch.base_header and patch.base_file and file_sha256(out) != patch.base_file:
        out.unlink()
        raise InputError(f"patch: reverting {patched} does not give back the base file; nothing was written")


def _save(source: Checkpoint, weights: dict[str, Any], header: str, out: Path) -> None:
    if out.exists():
        raise InputError(f"out: {out} exists; give another name")
    if (out.suffix == ".safetensors") != bool(header):
        kind = "a .safetensors" if header else "a torch (.pt)"
        raise InputError(f"out: {out.name} would be {kind} file; give a name with that ending")
    if header:
        save_like(out, header, weights)
        return
    content = read_torch(source.path)
    state = find_state(content, source.path)
    for name in state:
        state[name] = weights[name.removeprefix("module.")]
    with written_beside(out) as beside:
        torch.save(content, beside)
