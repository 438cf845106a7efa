"""Model folders as Hugging Face writes them: weights in safetensors shards, and files beside."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from hessian_surgery.errors import InputError
from hessian_surgery.files import folder_written_beside
from hessian_surgery.ranks import alone, present
from hessian_surgery.stored import read_json
from hessian_surgery.weights.tensorfile import file_sha256, read_header, save_like

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
# What peft writes in place of a whole model.
ADAPTER = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
# Weights in other formats, and what a training leaves: after a patch they would be out of date.
STALE = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".ot", ".gguf")


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a folder's weights: one, or the shards that its index names."""
    if not (folder / WEIGHTS).is_file() and (folder / INDEX).is_file():  # as transformers chooses
        places = read_json(folder / INDEX, "checkpoint").get("weight_map")
        if not isinstance(places, dict) or not places:
            raise InputError(f"checkpoint: {folder / INDEX} has no weight_map; save the model again")
        names = sorted({str(name) for name in places.values()})
    else:
        names = [WEIGHTS]
    for name in names:
        # An index may come from anywhere: it must not lead out of the folder.
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise InputError(f"checkpoint: {INDEX} names {name!r}; shards must be .safetensors files beside it")
        if not (folder / name).is_file() and any(folder.glob("pytorch_model*.bin")):
            raise InputError(
                f"checkpoint: {folder} holds pickled weights, which could run code: refused; load it where you trust "
                "it, and save it again with save_pretrained"
            )
        if not (folder / name).is_file() and (folder / ADAPTER).is_file():
            raise InputError(f"checkpoint: {folder} holds a peft adapter; give its file, {folder / ADAPTER_WEIGHTS}")
        if not (folder / name).is_file():
            raise InputError(f"checkpoint: {folder} has no {name}; give a folder that save_pretrained wrote")
    return [folder / name for name in names]


def read_headers(folder: Path) -> dict[str, str]:
    """The header of each weights file, character for character, by the file's name."""
    return {path.name: read_header(path) for path in weight_files(folder)}


def folder_sha256(folder: Path) -> str:
    """A hash of the names and the bytes of a folder's weights files."""
    lines = [f"{path.name} {file_sha256(path)}" for path in weight_files(folder)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def save_folder(out: Path, source: Path, headers: Mapping[str, str], weights: Mapping[str, Tensor]) -> None:
    """Write a model folder, all or nothing.

    It gets the weights, in files with the given headers, and the other files of `source` as they
    are; sub-folders and weights in other formats are left out.

    Args:
        out: the folder to write; one that exists is replaced.
        source: the folder that the model came from.
        headers: those of the weights files, by name.
        weights: tensors by the names that the headers give.
    """
    with folder_written_beside(out) as beside, alone():
        if not present().writes:
            return
        for path in sorted(source.iterdir()):
            if path.is_file() and path.suffix not in STALE and not path.name.startswith("."):
                shutil.copyfile(path, beside / path.name)
        for name, header in headers.items():
            save_like(beside / name, header, weights)
        if len(headers) > 1 and not (beside / INDEX).is_file():
            raise InputError(f"checkpoint: {source} has no {INDEX}; give the folder that the patch was made for")


def as_text(headers: Mapping[str, str]) -> str:
    """Headers as one text, for a patch."""
    return json.dumps(dict(headers), ensure_ascii=False, sort_keys=True)


def from_text(text: str) -> dict[str, str]:
    """The inverse of `as_text`."""
    try:
        headers = json.loads(text)
    except ValueError:
        headers = None
    known = isinstance(headers, dict) and headers
    if not known or not all(isinstance(h, str) and Path(n).name == n for n, h in headers.items()):
        raise InputError("patch: it is damaged: what it says of the base's files cannot be read")
    return dict(headers)
