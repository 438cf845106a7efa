"""Build a model from a built-in name or from `package.module:factory`."""

from collections.abc import Callable
from pathlib import Path

from torch import nn

from hessian_surgery.errors import InputError
from hessian_surgery.import_by_name import call_object
from hessian_surgery.model.resnet import resnet18, resnet34, resnet50
from hessian_surgery.model.smallnet import smallnet

BUILT_IN: dict[str, Callable[[int], nn.Module]] = {
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "smallnet": smallnet,
}


def check_model_spec(spec: str) -> None:
    """Refuse what names no model, before anything is opened."""
    if spec in BUILT_IN or ":" in spec:
        return
    hint = f"; did you mean hf:{spec}?" if (Path(spec) / "config.json").is_file() else ""
    raise InputError(
        f"model: got {spec!r}; give one of {', '.join(BUILT_IN)}, hf:DIR, timm:NAME, torchvision:NAME, "
        f"or package.module:factory for your own{hint}"
    )


def build_model(spec: str, num_classes: int) -> nn.Module:
    """Build a module for `num_classes` classes.

    Args:
        spec: a built-in name, or `package.module:factory`. The factory is called without arguments,
            so it must know the number of classes itself.
        num_classes: C, for a built-in model.
    """
    check_model_spec(spec)
    if spec in BUILT_IN:
        return BUILT_IN[spec](num_classes)
    module = call_object(spec, "model")
    if not isinstance(module, nn.Module):
        raise InputError(f"model: {spec} returns a {type(module).__name__}; it must return a torch.nn.Module")
    return module
