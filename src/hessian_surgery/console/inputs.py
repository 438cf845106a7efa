"""From options to objects: configuration, device, model, data."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hessian_surgery.classifier import Classifier, as_classifier
from hessian_surgery.data.parquet import Preprocessing
from hessian_surgery.data.sources import Parts, open_data
from hessian_surgery.errors import InputError
from hessian_surgery.models.build import build_model
from hessian_surgery.models.checkpoint import Checkpoint, load_weights, read_checkpoint
from hessian_surgery.surgery.config import SurgeryConfig


@dataclass(frozen=True)
class Opened:
    """A model with its weights in place, its data, and the file that the weights came from."""

    model: nn.Module
    parts: Parts
    checkpoint: Checkpoint | None

    @property
    def classifier(self) -> Classifier:
        """The model as a classifier."""
        return as_classifier(self.model)


def open_inputs(
    model: str,
    checkpoint_file: Path | None,
    data: str,
    seed: int,
    device: torch.device,
    image_size: int | None,
    mean: str | None,
    std: str | None,
) -> Opened:
    """Read the checkpoint and the data, build the model, load it and place it."""
    checkpoint = read_checkpoint(checkpoint_file) if checkpoint_file else None
    parts = open_data(data, seed, _preprocessing(checkpoint, image_size, mean, std))
    module = build_model(model, len(parts.sensitivity.classes))
    if checkpoint is not None:
        load_weights(module, checkpoint)
    elif ":" not in model:
        raise InputError(f"checkpoint: --model {model} has no weights of its own; give --checkpoint FILE")
    return Opened(module.to(device), parts, checkpoint)


def choose_config(preset: str, seed: int, **options: Any) -> SurgeryConfig:
    """The preset's configuration with the options that were given."""
    given = {name: value for name, value in options.items() if value is not None}
    if "exponent" in given and given["exponent"] != "auto":
        given["exponent"] = _number("exponent", given["exponent"])
    return replace(_preset(preset), seed=seed, **given)


def choose_device(name: str | None) -> torch.device:
    """The device that was asked for, or cuda where there is one."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device: {name!r} cannot be used: {str(error).splitlines()[0]}") from error
    return device


def new_folder(folder: Path) -> Path:
    """The folder, if no run has been written there."""
    if (folder / "result.json").exists() or (folder / "history.jsonl").exists():
        raise InputError(f"out: {folder} holds another run; give another folder, or move that one away")
    return folder


def _preset(text: str) -> SurgeryConfig:
    name, _, variant = text.partition(":")
    if text == "default":
        return SurgeryConfig()
    if name != "paper":
        raise InputError(f"preset: got {text!r}; give default, paper, paper:cifar100, paper:isic, paper:isic/focal, …")
    dataset, _, start = variant.partition("/")
    return SurgeryConfig.paper(dataset or "cifar10", start or "ce")  # type: ignore[arg-type]


def _preprocessing(checkpoint: Checkpoint | None, size: int | None, mean: str | None, std: str | None) -> Preprocessing:
    known = checkpoint.normalization() if checkpoint else None
    chosen = Preprocessing(size=size)
    if known is not None:
        chosen = replace(chosen, mean=tuple(known[0]), std=tuple(known[1]))
    if mean is not None:
        chosen = replace(chosen, mean=_numbers("mean", mean))
    if std is not None:
        chosen = replace(chosen, std=_numbers("std", std))
    return chosen


def _numbers(name: str, text: str) -> tuple[float, ...]:
    return tuple(_number(name, part) for part in text.split(","))


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"{name}: got {text!r}, which is not a number") from error
