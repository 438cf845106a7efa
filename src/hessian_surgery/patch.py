"""Patches that undo exactly: the exclusive-or of the stored bit patterns of two sets of weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from hessian_surgery.errors import InputError
from hessian_surgery.files import written_beside

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
FORMAT = "hessian-surgery patch 1"


@dataclass(frozen=True)
class WeightPatch:
    """What turns base weights into patched ones, and patched ones back into the base, bit for bit.

    Attributes:
        bits: for each tensor that changed, base XOR patched, as integers of the same width and shape.
        dtypes: for each of them, the dtype of the weights, as `torch.float16` is written.
        base_sha256: hash of the file that the patch is for; empty where there was no file.
    """

    bits: dict[str, Tensor]
    dtypes: dict[str, str]
    base_sha256: str = ""

    def toggle(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The patched weights from the base's, or the base's from the patched ones."""
        result = dict(weights)
        for name, bits in self.bits.items():
            if name not in weights or str(weights[name].dtype) != self.dtypes[name]:
                got = weights[name].dtype if name in weights else "nothing"
                raise InputError(f"patch: it changes {name!r} as {self.dtypes[name]}, but the weights have {got} there")
            weight = weights[name].contiguous()
            result[name] = (_as_bits(weight) ^ bits.to(weight.device)).view(weight.dtype)
        return result

    def save(self, path: Path) -> None:
        """Write `patch.safetensors`."""
        metadata = {"format": FORMAT, "base_sha256": self.base_sha256}
        metadata |= {f"dtype.{name}": dtype for name, dtype in self.dtypes.items()}
        with written_beside(path) as beside:
            save_file(self.bits, beside, metadata)


def make_patch(base: Mapping[str, Tensor], patched: Mapping[str, Tensor], base_sha256: str = "") -> WeightPatch:
    """The patch from `base` to `patched`: the same names, dtypes and shapes."""
    bits = {}
    for name, before in base.items():
        after = patched[name]
        if after.dtype != before.dtype or after.shape != before.shape:
            raise InputError(f"patch: {name!r} is {before.dtype} {tuple(before.shape)} and then {after.dtype}")
        difference = (_as_bits(before.contiguous()) ^ _as_bits(after.contiguous())).cpu()
        if difference.any():
            bits[name] = difference
    return WeightPatch(bits, {name: str(base[name].dtype) for name in bits}, base_sha256)


def load_patch(path: Path) -> WeightPatch:
    """Read `patch.safetensors`."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise InputError(f"patch: {path} is not a patch of this program; its format is {metadata.get('format')!r}")
        bits = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    return WeightPatch(bits, {name: metadata[f"dtype.{name}"] for name in bits}, metadata["base_sha256"])


def _as_bits(tensor: Tensor) -> Tensor:
    return tensor.view(_INTEGERS[tensor.element_size()])
