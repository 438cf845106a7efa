"""Patches that revert exactly: the exclusive or (XOR) of the bits of two sets of weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hessian_surgery.errors import InputError
from hessian_surgery.weights.checkpoint import Checkpoint
from hessian_surgery.weights.folder import as_text
from hessian_surgery.weights.tensorfile import file_bytes, read_tensors, save_tensors, weights_sha256

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# What the counters of BatchNorm's batches are called; they play no part in evaluation mode.
COUNTER = "num_batches_tracked"
FORMAT = "hessian-surgery patch 1"
NAMES = ("base_weights", "patched_weights", "base_file", "base_header")


@dataclass(frozen=True)
class WeightPatch:
    """The difference between base weights and patched weights, to apply or revert bit for bit.

    Attributes:
        bits: base XOR patched, for each tensor that changed, as integers of its width and shape.
        base_weights: hash of the weights that the patch is for.
        patched_weights: hash of the weights that it makes.
        base_file: hash of the file that the base was read from; empty if there was none.
        base_header: header of that file if it was a safetensors file; reverting then gives back the
            same bytes.
        base_folder: the headers of all weights files, as text, if the base was a model folder.
    """

    bits: dict[str, Tensor]
    base_weights: str
    patched_weights: str
    base_file: str = ""
    base_header: str = ""
    base_folder: str = ""

    def apply(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Turn the base weights into the patched ones; refuse any other weights.

        BatchNorm's counters, which files of torch 0.4 lack, may be there beside the base weights.
        """
        known = _known_as(weights, self.base_weights)
        if known is None:
            hint = "; they are patched already" if _known_as(weights, self.patched_weights) else ""
            raise InputError(f"patch: it was made for other weights than these{hint}")
        return dict(weights) | self._toggle(known, self.patched_weights)

    def revert(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Turn the patched weights back into the base; refuse any other weights."""
        known = _known_as(weights, self.patched_weights)
        if known is None:
            hint = "; they are the base already" if _known_as(weights, self.base_weights) else ""
            raise InputError(f"patch: it does not make these weights{hint}")
        return dict(weights) | self._toggle(known, self.base_weights)

    def _toggle(self, weights: Mapping[str, Tensor], expected: str) -> dict[str, Tensor]:
        try:
            changed = {name: _xor(weights[name], bits).view(weights[name].dtype) for name, bits in self.bits.items()}
        except (KeyError, RuntimeError):
            changed = {}
        result = dict(weights) | changed
        if weights_sha256(result) != expected:
            raise InputError("patch: it is damaged: it does not make the weights that it was made for")
        return result

    @property
    def file_bytes(self) -> int:
        """The size of `patch.safetensors`."""
        return file_bytes(self.bits, self._metadata())

    def save(self, path: Path) -> None:
        """Write `patch.safetensors`."""
        save_tensors(path, self.bits, self._metadata())

    def _metadata(self) -> dict[str, str]:
        folder = {"base_folder": self.base_folder} if self.base_folder else {}
        return {"patch": FORMAT} | {name: getattr(self, name) for name in NAMES} | folder


def make_patch(
    base: Mapping[str, Tensor],
    patched: Mapping[str, Tensor],
    base_file: str = "",
    base_header: str = "",
    base_folder: str = "",
) -> WeightPatch:
    """Make the patch from `base` to `patched`; names, dtypes and shapes must be the same."""
    bits = {}
    for name, before in base.items():
        after = patched[name]
        if after.dtype != before.dtype or after.shape != before.shape:
            raise InputError(
                f"patch: {name!r} is {before.dtype} {tuple(before.shape)} before and {after.dtype} "
                f"{tuple(after.shape)} after; both must be the same"
            )
        difference = _xor(before, after)
        if difference.any():
            bits[name] = difference
    return WeightPatch(bits, weights_sha256(base), weights_sha256(patched), base_file, base_header, base_folder)


def patch_of(source: Checkpoint | None, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> WeightPatch:
    """Make the patch between two states of a module, for the file or folder that it came from."""
    if source is None:
        return make_patch(before, after)
    folder = as_text(source.shards) if source.shards else ""
    return make_patch(source.in_file(before), source.in_file(after), source.sha256, source.header, folder)


def load_patch(path: Path) -> WeightPatch:
    """Read `patch.safetensors`."""
    if not path.is_file():
        raise InputError(f"patch: {path} is not a file; give a run's patch.safetensors")
    bits, metadata = read_tensors(path, "patch")
    if metadata.get("patch") != FORMAT:
        raise InputError(f"patch: {path} is not a patch of this program; give a run's patch.safetensors")
    lacking = next((name for name in NAMES if name not in metadata), None)
    if lacking or any(tensor.dtype not in _INTEGERS.values() for tensor in bits.values()):
        raise InputError(f"patch: {path} is damaged: it lacks {lacking or 'the bits of its weights'}")
    return WeightPatch(bits, **{name: metadata[name] for name in NAMES}, base_folder=metadata.get("base_folder", ""))


def _known_as(weights: Mapping[str, Tensor], sha256: str) -> Mapping[str, Tensor] | None:
    """The weights if they have this hash, with BatchNorm's counters or without; else None."""
    without = {name: tensor for name, tensor in weights.items() if not name.endswith(COUNTER)}
    return next((own for own in (weights, without) if weights_sha256(own) == sha256), None)


def _xor(one: Tensor, other: Tensor) -> Tensor:
    return _as_bits(one) ^ _as_bits(other)


def _as_bits(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().view(_INTEGERS[tensor.element_size()])
