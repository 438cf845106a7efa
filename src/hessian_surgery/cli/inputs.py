"""From options to objects: configuration, device, model, data."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hessian_surgery.cli.output import notes
from hessian_surgery.data.images import Preprocessing
from hessian_surgery.data.sources import IMAGE_KINDS, PARTS, Parts, open_data
from hessian_surgery.errors import InputError
from hessian_surgery.files import LOCK
from hessian_surgery.model.build import build_model
from hessian_surgery.model.classifier import Classifier, as_classifier
from hessian_surgery.model.smallnet import SmallNet, train_smallnet
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.weights.checkpoint import Checkpoint, load_weights, read_checkpoint

# Options of `operate` that only one way of operating has a use for.
PLANNED_ONLY = ("protect", "budget", "directions")
LOOP_ONLY = ("phases", "amplitude", "control", "bound", "exponent", "sensitivity")
SPIKES_ONLY = (
    "spikes",
    "lanczos_steps",
    "hessian_samples",
    "micro_batch",
    "basis",
    "precision",
    "basis_memory",
    "loss",
)
# Options that change nothing of what is found.
UNRECORDED = ("resume", "as_json", "dry_run", "figures")
USUAL_PRESET = ("preset", "default")
# The file that tells a demo's folder from others: only such a one may be replaced.
DEMO_MARK = "demo.txt"


@dataclass(frozen=True)
class Opened:
    """A model with its weights in place, its data, the file that the weights came from, and the options for them,
    and what a person should know about them.
    """

    model: nn.Module
    parts: Parts
    checkpoint: Checkpoint | None
    given: dict[str, Any]
    remarks: tuple[str, ...] = ()

    @property
    def classifier(self) -> Classifier:
        """The model as a classifier."""
        return as_classifier(self.model)

    @property
    def hashes(self) -> dict[str, str]:
        """SHA-256 of the file that the weights came from, where there is one."""
        return {"checkpoint file": self.checkpoint.sha256} if self.checkpoint else {}


@dataclass(frozen=True)
class InputOptions:
    """The options that say what to operate on, as they were given."""

    model: str
    checkpoint: Path | None
    data: str | None
    training_data: str | None
    calibration_data: str | None
    heldout_data: str | None
    device: str | None
    image_size: int | None
    mean: str | None
    std: str | None


def open_inputs(options: InputOptions, seed: int, needs: Sequence[str] = PARTS) -> Opened:
    """Read the checkpoint and the data, of which parts are needed, build the model, load it and place it."""
    device = choose_device(options.device)
    checkpoint = read_checkpoint(options.checkpoint) if options.checkpoint else None
    parts = open_data(
        options.data,
        seed,
        _preprocessing(checkpoint, options),
        training=options.training_data,
        calibration=options.calibration_data,
        heldout=options.heldout_data,
        needs=needs,
    )
    module = build_model(options.model, _outputs(checkpoint, len(parts.calibration.classes)))
    if checkpoint is not None:
        load_weights(module, checkpoint)
    elif ":" not in options.model:
        raise InputError(f"checkpoint: --model {options.model} has no weights of its own; give --checkpoint FILE")
    given = {name: str(value) for name, value in asdict(options).items() if value is not None}
    return Opened(module.to(device), parts, checkpoint, given, _remarks(options, checkpoint))


def open_given(given: dict[str, Any], needs: Sequence[str] = PARTS) -> Opened:
    """`open_inputs` with a command's options."""
    options = InputOptions(**{field.name: given[field.name] for field in fields(InputOptions)})
    return open_inputs(options, given["seed"], needs)


def recorded_options(given: dict[str, Any]) -> dict[str, str]:
    """A command's options as files keep them, so that the command can be given again."""
    kept = {key: value for key, value in given.items() if value is not None and value is not False}
    return {key: str(value) for key, value in kept.items() if key not in UNRECORDED and (key, value) != USUAL_PRESET}


def digits_net(seed: int) -> tuple[SmallNet, Parts]:
    """The demo's net, trained on the digits, and their parts."""
    parts = open_data("digits", seed)
    notes().print(f"training a small net on {len(parts.training)} long-tailed, noisy digits", highlight=False)
    return train_smallnet(parts.training, seed), parts


def choose_config(given: dict[str, Any]) -> SurgeryConfig:
    """The preset's configuration with those of a command's options that were given."""
    names = [field.name for field in fields(SurgeryConfig)]
    chosen = {name: given[name] for name in names if given.get(name) is not None}
    if "=" in chosen.get("target", ""):
        chosen["targets"] = _targets(chosen.pop("target"))
    if "protect" in chosen:
        chosen["protect"] = tuple(name.strip() for name in chosen["protect"].split(","))
    if "exponent" in chosen and chosen["exponent"] != "auto":
        chosen["exponent"] = _number("exponent", chosen["exponent"])
    return replace(_preset(given["preset"], chosen.get("control")), **chosen)


def refuse_unused(given: dict[str, Any], config: SurgeryConfig) -> None:
    """Raise an InputError for an option of `operate` that the chosen algorithm has no use for."""
    unused: tuple[str, ...]
    if config.algorithm == "loop":
        unused, hint = PLANNED_ONLY, "the loop has no use for it; leave out --preset"
    else:
        unused, hint = LOOP_ONLY, "it is of the loop; give --preset loop"
    _refuse(given, unused, hint)
    if not config.uses_spikes:
        _refuse(given, SPIKES_ONLY, "it is of spikes; give --directions spikes, or --preset loop")


def _refuse(given: dict[str, Any], names: tuple[str, ...], hint: str) -> None:
    for name in names:
        if given.get(name) is not None:
            raise InputError(f"{name}: got {given[name]!r}, but {hint}")


def choose_device(name: str | None) -> torch.device:
    """The device that was asked for, or cuda where there is one."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device: {name!r} cannot be used: {str(error).splitlines()[0]}") from error
    return device


def check_folder(folder: Path, resume: bool) -> None:
    """Refuse a folder that holds anything but an unfinished run that is to be resumed."""
    if (folder / "result.json").exists():
        raise InputError(f"out: {folder} holds a finished run; give another folder, or move that one away")
    if (folder / "history.jsonl").exists() and not resume:
        raise InputError(f"out: {folder} holds an unfinished run; give --resume to go on with it, or another folder")
    if not (folder / "history.jsonl").exists():
        check_empty(folder)


def make_folder(folder: Path | None, argument: str) -> None:
    """Make a folder that something will be written to later, if there is one; refuse it now rather than then."""
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{argument}: {folder} cannot be made: {error.strerror}; give another folder") from error


def check_demo_folder(folder: Path) -> None:
    """Refuse a folder that holds anything but an earlier demo."""
    if _contents(folder) and not (folder / DEMO_MARK).exists():
        raise InputError(f"out: {folder} holds something other than a demo; give an empty or new folder")


def check_comparison_folder(folder: Path) -> None:
    """Refuse a folder that holds anything but the trainings of a comparison that was not finished."""
    if (folder / "compare.json").exists():
        raise InputError(f"out: {folder} holds a finished comparison; give another folder, or move that one away")
    others = [name for name in _contents(folder) if not name.startswith("training-")]
    if others:
        raise InputError(f"out: {folder} holds other files, such as {others[0]}; give an empty or new folder")


def check_empty(folder: Path) -> None:
    """Refuse a folder that holds anything."""
    if _contents(folder):
        raise InputError(
            f"out: {folder} holds other files, such as {_contents(folder)[0]}; give an empty or new folder"
        )


def _contents(folder: Path) -> list[str]:
    """What lies in a folder, less our own lock and half-written files."""
    if not folder.is_dir():
        return []
    return sorted(p.name for p in folder.iterdir() if p.name != LOCK and not (p.name[0] == "." and p.suffix == ".tmp"))


def _remarks(options: InputOptions, checkpoint: Checkpoint | None) -> tuple[str, ...]:
    """What was not given, and what is done instead."""
    remarks = []
    if checkpoint is None:
        remarks.append(f"note: no --checkpoint: the weights that {options.model} comes with are used")
    specs = (options.data, options.training_data, options.calibration_data, options.heldout_data)
    images = any(spec and spec.partition(":")[0] in IMAGE_KINDS for spec in specs)
    if images and options.mean is None and not (checkpoint and checkpoint.normalization()):
        remarks.append(
            "note: images are scaled to [0, 1] and not normalised: no --mean and --std, and none in the checkpoint"
        )
    return tuple(remarks)


def _outputs(checkpoint: Checkpoint | None, classes: int) -> int:
    """How many outputs a built-in model gets: as many as the checkpoint's head has, or the data's classes."""
    bias = checkpoint.weights.get("fc.bias") if checkpoint else None
    return classes if bias is None else len(bias)


def _preset(text: str, control: str | None) -> SurgeryConfig:
    name, _, variant = text.partition(":")
    if text == "default":
        return SurgeryConfig()
    if text == "loop":
        return SurgeryConfig.loop()
    if name != "paper":
        raise InputError(f"preset: got {text!r}; give default, loop, paper, paper:cifar100, paper:isic/focal, …")
    dataset, _, start = variant.partition("/")
    return SurgeryConfig.paper(dataset or "cifar10", start or "ce", control or "adam")  # type: ignore[arg-type]


def _targets(text: str) -> dict[str, float]:
    """Accuracies by class name, from `cat=0.8,dog=0.75`; a name may hold an equals sign."""
    pairs = [part.rpartition("=") for part in text.split(",")]
    names = [name.strip() for name, _, _ in pairs]
    if not all(names) or not all(value.strip() for _, _, value in pairs) or len(set(names)) < len(names):
        raise InputError(f"target: got {text!r}; give sigma, worst, or accuracies such as cat=0.8,dog=0.75, each once")
    return {name: _number("target", value) for name, (_, _, value) in zip(names, pairs, strict=True)}


def _preprocessing(checkpoint: Checkpoint | None, options: InputOptions) -> Preprocessing:
    known = checkpoint.normalization() if checkpoint else None
    chosen = Preprocessing(size=options.image_size)
    if known is not None:
        chosen = replace(chosen, mean=tuple(known[0]), std=tuple(known[1]))
    if (options.mean is None) != (options.std is None):
        raise InputError("mean: --mean and --std go together; give both, such as --mean 0.5,0.5,0.5 --std 0.2,0.2,0.2")
    if options.mean is not None and options.std is not None:
        chosen = replace(chosen, mean=numbers("mean", options.mean), std=numbers("std", options.std))
    return chosen


def whole_numbers(name: str, text: str) -> tuple[int, ...]:
    """Whole numbers separated by commas."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"{name}: got {text!r}; give whole numbers separated by commas") from error


def numbers(name: str, text: str) -> tuple[float, ...]:
    """Numbers separated by commas."""
    return tuple(_number(name, part) for part in text.split(","))


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"{name}: got {text!r}, which is not a number") from error
