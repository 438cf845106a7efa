"""Read checkpoints: safetensors, or torch files with weights_only. No user's file is unpickled."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from hessian_surgery.errors import InputError
from hessian_surgery.plain_text import reason
from hessian_surgery.weights.adapter import own_state
from hessian_surgery.weights.folder import folder_sha256, read_headers, weight_files
from hessian_surgery.weights.tensorfile import file_sha256, read_header, read_tensors
from hessian_surgery.weights.torchfile import check_bounds

# What weights may be stored in: what patches hold as integers of the same width.
DTYPES = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
}
# A tensor may repeat its values in memory up to this many bytes.
EXPANDED = 100_000_000


@dataclass(frozen=True)
class Checkpoint:
    """Weights as a file holds them, or a model folder with its shards.

    Attributes:
        path: the file, or the folder.
        weights: tensors by name, in the file's dtypes.
        metadata: the file's own metadata (safetensors only).
        sha256: hash of the file, or of all shards.
        header: the file's header, character for character (safetensors only).
        shards: the header of each weights file of a folder, by the file's name.
        module_names: the module's name for each tensor that it has, by the file's name; None if
            the names are the same.
    """

    path: Path
    weights: dict[str, Tensor]
    metadata: dict[str, str]
    sha256: str
    header: str = ""
    shards: dict[str, str] = field(default_factory=dict)
    module_names: dict[str, str] | None = None

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        """The dtype that each tensor of the module is stored in, by the module's name for it."""
        return {own: self.weights[name].dtype for name, own in self._names().items()}

    def in_file(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A module's state under the file's names, with what the file holds besides.

        Raises:
            InputError: it is in other dtypes than the file.
        """
        named = {name: state[own] for name, own in self._names().items()}
        for name, tensor in named.items():
            if tensor.dtype != self.weights[name].dtype:
                raise InputError(
                    f"source: its {name!r} is {self.weights[name].dtype}, not {tensor.dtype}; "
                    "operate with stored_as=source.dtypes"
                )
        return self.weights | named

    def _names(self) -> dict[str, str]:
        return {name: name for name in self.weights} if self.module_names is None else self.module_names

    def normalization(self) -> tuple[list[float], list[float]] | None:
        """Mean and standard deviation of each channel of the inputs; None if the file has none."""
        texts = [self.metadata.get(f"normalize_{key}") for key in ("mean", "std")]
        if None in texts:
            return None
        try:
            mean, std = ([float(number) for number in str(text).strip("[]() ").split(",")] for text in texts)
        except ValueError:
            raise InputError(
                f"checkpoint: its normalize_mean and normalize_std are {texts}; they must be numbers"
            ) from None
        return mean, std


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a `.safetensors` file, a torch file (`.pt`, `.pth`, `.th`), or a model folder."""
    if not path.is_file() and not path.is_dir():
        raise InputError(f"checkpoint: {path} is not a file")
    try:
        if path.is_dir():
            return _read_folder(path)
        if path.suffix == ".safetensors":
            weights, metadata = read_tensors(path, "checkpoint")
            check_tensors(weights)
            return Checkpoint(path, weights, metadata, file_sha256(path), read_header(path))
        state = find_state(read_torch(path), path)
        weights = {plain: state[name] for name, plain in plain_names(state).items()}
        check_tensors(weights)
    except InputError:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise InputError(f"checkpoint: {path} cannot be read, it may be truncated: {reason(error)}") from error
    return Checkpoint(path, weights, {}, file_sha256(path))


def _read_folder(folder: Path) -> Checkpoint:
    """Read all shards of a model folder."""
    weights: dict[str, Tensor] = {}
    for path in weight_files(folder):
        weights |= read_tensors(path, "checkpoint")[0]
    return Checkpoint(folder, weights, {}, folder_sha256(folder), shards=read_headers(folder))


def read_torch(path: Path) -> Any:
    """Read a torch file that holds nothing but tensors and plain containers."""
    try:
        check_bounds(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise InputError(
            f"checkpoint: {path} holds more than weights, and loading it could run code: refused; "
            "save the model's state_dict() instead"
        ) from error


def find_state(content: Any, path: Path) -> dict[str, Tensor]:
    """Find the state dict in a torch file: its content, or the entry `state_dict` or `model`."""
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise InputError(f"checkpoint: {path} holds no state_dict of tensors; save the model's state_dict()")
    if not all(isinstance(name, str) for name in content):
        raise InputError(f"checkpoint: {path} holds tensors without names; save the model's state_dict()")
    return content


def check_tensors(weights: Mapping[str, Tensor]) -> None:
    """Refuse tensors that no model is loaded from: of another layout or dtype, or bombs."""
    for name, tensor in weights.items():
        kind = str(tensor.layout) if tensor.layout != torch.strided or tensor.is_nested else str(tensor.dtype)
        kind = "nested" if tensor.is_nested else kind
        if kind.startswith(("nested", "torch.sparse")) or tensor.is_quantized or tensor.dtype not in DTYPES:
            raise InputError(
                f"checkpoint: {name!r} is {kind}; give plain tensors of float16, bfloat16, float32, float64 or integers"
            )
        if tensor.device.type == "meta":
            raise InputError(f"checkpoint: {name!r} is on the meta device, without values; save the weights themselves")
        if tensor.nbytes > max(EXPANDED, tensor.untyped_storage().nbytes()):
            raise InputError(f"checkpoint: {name!r} has {tensor.nbytes:,} bytes, more than the file holds; clone it")


def plain_names(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the model's own name for each name in a file: without DataParallel's `module.`."""
    prefix = "module." if all(name.startswith("module.") for name in state) else ""
    return {name: name.removeprefix(prefix) for name in state}


def stored_state(module: nn.Module, dtypes: Mapping[str, torch.dtype] | None) -> dict[str, Tensor]:
    """A copy of a module's state on the CPU, with the names and dtypes that it is stored with.

    By default these are the module's own. Of a peft model it is its adapter's state.
    """
    state = own_state(module)
    if dtypes is None:
        dtypes = {name: tensor.dtype for name, tensor in state.items()}
    return {name: state[name].detach().cpu().to(dtype, copy=True) for name, dtype in dtypes.items()}


def load_weights(module: nn.Module, checkpoint: Checkpoint) -> None:
    """Load a checkpoint into a module, in the module's dtypes; names and shapes must match.

    What `load_state_dict` takes is taken: BatchNorm's counters, which torch 0.4 did not have, may
    be missing.
    """
    wanted = module.state_dict()
    counters = {
        f"{name}.num_batches_tracked".removeprefix(".")
        for name, part in module.named_modules()
        if isinstance(part, _NormBase)
    }
    present = {wanted[name].data_ptr() for name in checkpoint.weights if name in wanted and wanted[name].numel()}
    lacking = {name: tensor for name, tensor in wanted.items() if name not in checkpoint.weights}
    missing = [n for n, t in lacking.items() if t.data_ptr() not in present and n not in counters]
    unknown = [name for name in checkpoint.weights if name not in wanted]
    if missing or unknown:
        which = f"lacks {missing[0]!r}" if missing else f"has {unknown[0]!r}, which the model lacks"
        more = len(missing) + len(unknown) - 1
        others = f" (and {more} more differ)" if more else ""
        raise InputError(f"checkpoint: {checkpoint.path} {which}{others}; give the model that it was trained with")
    for name, tensor in checkpoint.weights.items():
        if tensor.shape != wanted[name].shape:
            raise InputError(
                f"checkpoint: {name!r} has shape {tuple(tensor.shape)}, the model's has {tuple(wanted[name].shape)}; "
                "give the model that it was trained with"
            )
        if torch.promote_types(tensor.dtype, wanted[name].dtype) != wanted[name].dtype:
            raise InputError(
                f"checkpoint: {name!r} is {tensor.dtype}, which does not fit into the model's {wanted[name].dtype}; "
                "build the model in the file's dtype"
            )
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise InputError(f"checkpoint: {name!r} holds NaN or infinite values; give another checkpoint")
    # Not strict: a tied weight may be stored under only one of its names.
    module.load_state_dict(checkpoint.weights, strict=False)
