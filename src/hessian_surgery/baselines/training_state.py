"""A training's state on disk after each epoch: a killed run resumes and ends the same."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hessian_surgery.baselines.training_step import Training
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.errors import FileError
from hessian_surgery.stored import blamed_on
from hessian_surgery.weights.tensorfile import read_checked, save_checked, weights_sha256


def own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers by name, also those not in `state_dict`; not copies."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


def fingerprint(config: Mapping[str, Any], module: nn.Module, data: LabelledSet) -> str:
    """Hash the choices, starting weights and buffers, what is trainable, and samples with labels.

    The inputs themselves are left out: reading them would take another pass over the data.
    """
    trainable = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    digest = hashlib.sha256(json.dumps([config, trainable, data.classes], sort_keys=True).encode())
    digest.update(weights_sha256(own_tensors(module)).encode())
    digest.update(weights_sha256({"index": data.index, "labels": data.labels}).encode())
    return digest.hexdigest()


def save_state(folder: Path, training: Training, epochs: int, identity: str) -> None:
    """Write the state after `epochs` epochs as one file, which replaces the last one at once."""
    tensors = {f"module.{name}": tensor for name, tensor in own_tensors(training.classifier.module).items()}
    save_checked(_path(folder), tensors | training.moments, {"identity": identity, "epochs": str(epochs)})


def load_state(folder: Path, module: nn.Module, identity: str) -> tuple[int, dict[str, Tensor]]:
    """Load a saved state's weights and buffers into the module.

    Returns:
        How many epochs are done (0 if there is no state), and the optimizer's state.

    Raises:
        FileError: the file cannot be read, or it belongs to another run.
    """
    if not _path(folder).exists():
        return 0, {}
    with blamed_on(f"folder: {_path(folder)}"):
        tensors, metadata = read_checked(_path(folder), "folder")
        theirs = metadata["identity"]
        epochs = int(metadata["epochs"])
    if theirs != identity:
        raise FileError(
            f"folder: {folder} holds a training with other options, starting weights, images or labels; "
            "give the same ones again, delete it, or choose another place"
        )
    with torch.no_grad(), blamed_on(f"folder: {_path(folder)}"):
        for name, tensor in own_tensors(module).items():
            tensor.copy_(tensors[f"module.{name}"])
    return epochs, {name: tensor for name, tensor in tensors.items() if name.startswith("optimizer.")}


@torch.no_grad()
def load_moments(training: Training, moments: Mapping[str, Tensor]) -> None:
    """Load the optimizer's state in place."""
    for name, tensor in training.moments.items():
        tensor.copy_(moments[name])


def forget_state(folder: Path) -> None:
    """Remove the state of a finished training, and nothing else."""
    with suppress(OSError):
        _path(folder).unlink(missing_ok=True)
        folder.rmdir()


def _path(folder: Path) -> Path:
    return folder / "training.safetensors"
