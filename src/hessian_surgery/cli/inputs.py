"""Open the model and the data that the options name."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import nn

from hessian_surgery.cli.choices import LOSSES
from hessian_surgery.cli.configs import given_options
from hessian_surgery.cli.options import InputOptions
from hessian_surgery.cli.output import notes
from hessian_surgery.data.images import Preprocessing
from hessian_surgery.data.leaks import ON_TRAINING
from hessian_surgery.data.readers.hugging_face import Encoding
from hessian_surgery.data.sources import HUGGING_FACE, IMAGE_KINDS, PARTS, Parts, calibrates_on_training, open_data
from hessian_surgery.errors import InputError
from hessian_surgery.model.build import build_model, check_model_spec
from hessian_surgery.model.classifier import Classifier, as_classifier
from hessian_surgery.model.pretrained import Pretrained, open_pretrained, with_label_names
from hessian_surgery.model.smallnet import SmallNet, train_smallnet
from hessian_surgery.model.vision import OwnPreprocessing, VisionModel, build_vision, find_vision
from hessian_surgery.operation.config import OperationConfig
from hessian_surgery.parse_numbers import parse_numbers
from hessian_surgery.plain_text import reason
from hessian_surgery.ranks import present
from hessian_surgery.weights.checkpoint import Checkpoint, load_weights, read_checkpoint

# Options that do not change what is found.
UNRECORDED = ("resume", "as_json", "dry_run", "figures")


@dataclass(frozen=True)
class OpenedModel:
    """A model with its weights in place, and its data.

    Attributes:
        model: the module, on its device.
        parts: training, calibration and held-out data.
        checkpoint: the file that the weights came from, if there is one.
        given: the options that name model and data, by name.
        remarks: what a person should know about model and data.
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
        """SHA-256 of the file that the weights came from, if there is one."""
        return {"checkpoint file": self.checkpoint.sha256} if self.checkpoint else {}


def open_model(
    options: InputOptions, needs: Sequence[str] = PARTS, halve: bool = True, fresh: bool = False
) -> OpenedModel:
    """Read the checkpoint and the data, build the model, load it and place it.

    Args:
        options: which model and which data.
        needs: the parts of the data that must be there.
        halve: False makes all of --data's test part calibration data, for folds.
        fresh: whether a built-in model without --checkpoint may keep its random weights.
    """
    if options.model is None:
        raise InputError("model: missing; give --model, such as resnet50 or package.module:factory")
    device = choose_device(options.device)
    pretrained, vision = _pretrained(options, fresh), find_vision(options.model)
    checkpoint = read_checkpoint(options.checkpoint) if options.checkpoint else None
    check_model_spec(options.model)
    encoding = _encoding(pretrained, vision, checkpoint, options)
    parts = opened_parts(options, encoding, needs, halve)
    if pretrained is not None:
        module, checkpoint = pretrained.model, pretrained.checkpoint
        parts = Parts(**{name: with_label_names(part, module) for name, part in vars(parts).items()})
    elif vision is not None and checkpoint is None and not fresh:
        module = vision.trained().eval()
    else:
        module = _built(options.model, vision, checkpoint, len(parts.calibration.classes))
        _load(module, checkpoint, options.model, fresh)
    names = {own.name for own in fields(InputOptions)} - {"seed"}
    given = {name: str(value) for name, value in given_options(options).items() if name in names}
    remarks = _remarks(options, checkpoint, fresh, encoding)
    return OpenedModel(module.to(device), parts, checkpoint, given, remarks)


def with_trained_loss(config: OperationConfig, given: str | None, opened: OpenedModel) -> OperationConfig:
    """The config with the loss that the checkpoint says it was trained with, if none was given.

    Only spikes depend on it. What the file says is left alone if it names no loss of ours.
    """
    known = opened.checkpoint.metadata.get("loss", "") if opened.checkpoint else ""
    if given is not None or known.partition(":")[0] not in LOSSES or not config.uses_spikes:
        return config
    return replace(config, search=replace(config.search, loss=known))


def _pretrained(options: InputOptions, fresh: bool) -> Pretrained | None:
    """Open a Hugging Face model; None if --model names another."""
    kind, _, place = str(options.model).partition(":")
    if kind != HUGGING_FACE:
        return None
    if options.checkpoint is not None:
        raise InputError(f"checkpoint: --model {options.model} has weights of its own; leave out --checkpoint")
    if fresh:
        raise InputError(f"model: {options.model} is trained already; train it further with transformers, not here")
    return open_pretrained(place)


def _built(name: str, vision: VisionModel | None, checkpoint: Checkpoint | None, classes: int) -> nn.Module:
    """Build the model: with as many outputs as the checkpoint has, or one for each class."""
    if vision is not None:
        return build_vision(vision, classes, checkpoint.weights if checkpoint else None)
    return build_model(name, _outputs(checkpoint, classes))


def _load(module: nn.Module, checkpoint: Checkpoint | None, name: str, fresh: bool) -> None:
    """Load the weights, if there are any; refuse a built-in model without."""
    if checkpoint is not None:
        load_weights(module, checkpoint)
    elif ":" not in name and not fresh:
        raise InputError(f"checkpoint: --model {name} has no weights of its own; give --checkpoint FILE")


def opened_parts(options: InputOptions, encoding: Encoding, needs: Sequence[str] = PARTS, halve: bool = True) -> Parts:
    """Open the data that the options name; the arguments are those of `open_model`."""
    return open_data(
        options.data,
        options.seed,
        encoding.preprocessing,
        encoding=encoding,
        training=options.training_data,
        calibration=options.calibration_data,
        heldout=options.heldout_data,
        needs=needs,
        halve=halve,
    )


def recorded_options(options: object) -> dict[str, str]:
    """Return a command's options as files keep them: enough to give the command again.

    An option without a value, such as --recalibrate, has an empty one.
    """
    kept = {key: value for key, value in given_options(options).items() if value is not False}
    if kept.get("preset") == "default":
        del kept["preset"]
    return {key: "" if value is True else str(value) for key, value in kept.items() if key not in UNRECORDED}


def digits_net(seed: int) -> tuple[SmallNet, Parts]:
    """Train the demo's net on the digits; return it with its data."""
    parts = open_data("digits", seed)
    notes().print(f"training a small net on {len(parts.training)} long-tailed, noisy digits", highlight=False)
    return train_smallnet(parts.training, seed), parts


def choose_device(name: str | None) -> torch.device:
    """Return the device with this name; without a name cuda if there is one, else cpu."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        if device.type == "cuda" and device.index is None and present().joined:
            device = torch.device("cuda", present().local % torch.cuda.device_count())
        torch.zeros(1, device=device).item()  # also refuses the meta device, which holds no values
    except Exception as error:  # each kind of device has its own
        raise InputError(f"device: {name!r} cannot be used: {reason(error)}; give cpu or cuda") from error
    return torch.device("cpu") if device.type == "cpu" else device


def _remarks(options: InputOptions, checkpoint: Checkpoint | None, fresh: bool, encoding: Encoding) -> tuple[str, ...]:
    """Say what was not given, and what is done instead."""
    remarks = []
    if checkpoint is None and not fresh:
        remarks.append(f"note: no --checkpoint, so the weights that {options.model} comes with are used")
    if calibrates_on_training(options.data, options.training_data, options.calibration_data):
        remarks.append(ON_TRAINING)
    specs = (options.data, options.training_data, options.calibration_data, options.heldout_data)
    kinds = IMAGE_KINDS if encoding.texts else (*IMAGE_KINDS, HUGGING_FACE)
    images = any(spec and spec.partition(":")[0] in kinds for spec in specs)
    prepared = encoding.preprocessing
    if images and isinstance(prepared, OwnPreprocessing):
        remarks.append(f"note: images are prepared as {options.model} does by default; --image-size says otherwise")
    known = options.mean is not None or (checkpoint and checkpoint.normalization())
    if images and not known and prepared == Preprocessing(size=prepared.size):
        remarks.append(
            "note: images are scaled to [0, 1] and not normalised: neither --mean and --std nor the checkpoint say how"
        )
    return tuple(remarks)


def _outputs(checkpoint: Checkpoint | None, classes: int) -> int:
    """Count the outputs of a built-in model: the checkpoint's, or one for each class."""
    bias = checkpoint.weights.get("fc.bias") if checkpoint else None
    return len(bias) if bias is not None and bias.ndim == 1 else classes


def _encoding(
    pretrained: Pretrained | None, vision: VisionModel | None, checkpoint: Checkpoint | None, options: InputOptions
) -> Encoding:
    """How the model takes images and texts; options about images come before its own processor."""
    chosen = _preprocessing(checkpoint, options)
    if vision is not None and chosen == Preprocessing():
        return Encoding(vision.preprocessing)
    if vision is not None and chosen == Preprocessing(size=chosen.size):
        return Encoding(replace(chosen, mean=vision.preprocessing.mean, std=vision.preprocessing.std))
    if pretrained is None:
        return Encoding(chosen)
    own = pretrained.encoding
    return own if chosen == Preprocessing() else replace(own, preprocessing=chosen)


def _preprocessing(checkpoint: Checkpoint | None, options: InputOptions) -> Preprocessing:
    known = checkpoint.normalization() if checkpoint else None
    chosen = Preprocessing(size=options.image_size)
    if known is not None:
        chosen = replace(chosen, mean=tuple(known[0]), std=tuple(known[1]))
    if (options.mean is None) != (options.std is None):
        raise InputError("mean: --mean and --std go together; give both, such as --mean 0.5,0.5,0.5 --std 0.2,0.2,0.2")
    if options.mean is not None and options.std is not None:
        mean = parse_numbers("mean", options.mean)
        chosen = replace(chosen, mean=mean, std=parse_numbers("std", options.std))
    return chosen
