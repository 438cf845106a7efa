"""Models of timm and torchvision by name, with their own preprocessing and class names."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from hessian_surgery.data.images import Preprocessing
from hessian_surgery.errors import InputError
from hessian_surgery.import_by_name import import_extra

TIMM, TORCHVISION = "timm", "torchvision"


@dataclass(frozen=True)
class OwnPreprocessing(Preprocessing):
    """Preprocessing as a library evaluates a model with: resizing, cropping and normalising.

    Attributes:
        transform: function from an RGB image to an input (3, h, w).
    """

    transform: Callable[[Any], Tensor] | None = None

    def batch(self, encoded: list[bytes], names: list[str]) -> Tensor:
        """Decode images to inputs (n, 3, h, w) float32; `names` are for error messages."""
        return torch.stack([self._prepare(content, name) for content, name in zip(encoded, names, strict=True)])

    def normalize(self, pixels: Tensor) -> Tensor:
        """Turn pixels (n, 3, h, w) uint8 into inputs (n, 3, h, w) float32."""
        assert self.transform is not None
        images = [Image.fromarray(one.permute(1, 2, 0).numpy()) for one in pixels]
        return torch.stack([self.transform(image) for image in images])

    def _prepare(self, encoded: bytes, name: str) -> Tensor:
        assert self.transform is not None
        try:
            image = Image.open(io.BytesIO(encoded)).convert("RGB")
        except Exception as error:  # a damaged image can raise anything
            raise InputError(f"data: {name} cannot be read as an image; remove or repair it") from error
        return self.transform(image)


@dataclass(frozen=True)
class VisionModel:
    """A model that a library knows by name.

    Attributes:
        build: function from the number of classes to a module with random weights.
        trained: function without arguments to the module with the library's own weights, which it
            may have to fetch.
        preprocessing: as the library evaluates those weights with.
    """

    build: Callable[[int], nn.Module]
    trained: Callable[[], nn.Module]
    preprocessing: OwnPreprocessing


def find_vision(spec: str) -> VisionModel | None:
    """Find the model that `timm:NAME` or `torchvision:NAME` names; None if it names another."""
    kind, _, name = spec.partition(":")
    if kind not in (TIMM, TORCHVISION):
        return None
    return _timm(name) if kind == TIMM else _torchvision(name)


def build_vision(found: VisionModel, classes: int, stored: dict[str, Tensor] | None) -> nn.Module:
    """Build a model with as many outputs as the stored weights have; else one for each class."""
    module = found.build(classes)
    if stored is not None:
        name, last = list(module.named_parameters())[-1]
        if name in stored and stored[name].ndim == last.ndim and len(stored[name]) != len(last):
            module = found.build(len(stored[name]))
    return module


def _timm(name: str) -> VisionModel:
    timm = import_extra("timm", "model", "vision")
    if not timm.is_model(name):
        raise InputError(f"model: timm has no {name!r}; {_like(name, timm.list_models())}")
    known = timm.get_pretrained_cfg(name).to_dict()
    config = timm.data.resolve_data_config({}, pretrained_cfg=known)

    def trained() -> nn.Module:
        module = _fetched(f"timm:{name}", lambda: timm.create_model(name, pretrained=True))
        if known.get("num_classes") == 1000:
            module.class_names = tuple(timm.data.ImageNetInfo().label_names())
        return module

    return VisionModel(
        build=lambda classes: timm.create_model(name, pretrained=False, num_classes=classes),
        trained=trained,
        preprocessing=_own(timm.data.create_transform(**config, is_training=False), config["mean"], config["std"]),
    )


def _torchvision(name: str) -> VisionModel:
    models = import_extra("torchvision", "model", "vision").models
    classifiers = models.list_models(module=models)
    if name not in classifiers:
        raise InputError(f"model: torchvision has no {name!r}; {_like(name, classifiers)}")
    weights = models.get_model_weights(name).DEFAULT
    preset = weights.transforms()

    def trained() -> nn.Module:
        module = models.get_model(name, weights=None)
        state = _fetched(f"torchvision:{name}", lambda: weights.get_state_dict(weights_only=True, check_hash=True))
        module.load_state_dict(state)
        module.class_names = tuple(weights.meta["categories"])
        return module

    return VisionModel(
        build=lambda classes: models.get_model(name, weights=None, num_classes=classes),
        trained=trained,
        preprocessing=_own(preset, preset.mean, preset.std),
    )


def _own(transform: Callable[[Any], Tensor], mean: Any, std: Any) -> OwnPreprocessing:
    return OwnPreprocessing(mean=tuple(mean), std=tuple(std), transform=transform)


def _fetched(spec: str, load: Callable[[], Any]) -> Any:
    """What the library loads, or one line that says why it cannot."""
    try:
        return load()
    except Exception as error:  # no network, no room, a server's own reasons
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"model: {spec} has no weights here: {reason}; give a checkpoint") from error


def _like(name: str, known: list[str]) -> str:
    alike = [other for other in known if name and name.split("_")[0] in other]
    return f"give a name such as {', '.join((alike or known)[:3])}"
