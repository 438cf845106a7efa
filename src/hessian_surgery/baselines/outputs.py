"""What a model gives on N images: computed once for all of them, then split by position."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from hessian_surgery.directions.family import Directions
from hessian_surgery.directions.logit_changes import AfterStep
from hessian_surgery.errors import InputError
from hessian_surgery.model.head import Head
from hessian_surgery.short_repr import short_repr
from hessian_surgery.weights.tensorfile import read_tensors, save_tensors


def _no_weights(_: Tensor, __: Tensor | None) -> Tensor:
    raise InputError("there are no weights to move: only logits were given")


@dataclass(frozen=True)
class ModelOutputs:
    """A model's outputs on N images of C classes, and the directions that its weights can move in.

    Only the first three are always there; tensors are on the model's device.

    Attributes:
        classes: class names.
        labels: (N,).
        logits: (N, C).
        training_counts: training images of each class (C,), if known.
        head: the linear layer that gives the logits, if there is one.
        features: its inputs (N, d).
        directions: families of directions, by name.
        bias: the head's biases as directions, if it has any.
        after_step: step (p,) in weight space, positions (n,) → the logits of the images at these
            positions, or of all, by a forward pass.
        default_counts: by family, the directions that a method takes if its name gives no number.
        family_seconds: seconds that each family took to compute, by name.
        missing: why a family could not be computed, by name.

    Example:
        >>> fronts.outputs.logits.shape
        torch.Size([600, 3])
    """

    classes: tuple[str, ...]
    labels: Tensor
    logits: Tensor
    training_counts: Tensor | None = None
    head: Head | None = None
    features: Tensor | None = None
    directions: Mapping[str, Directions] = field(default_factory=dict)
    bias: Directions | None = None
    after_step: AfterStep = _no_weights
    default_counts: Mapping[str, int] = field(default_factory=dict)
    family_seconds: Mapping[str, float] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    __repr__ = short_repr

    def family(self, name: str) -> Directions:
        """Return a family of directions.

        Raises:
            InputError: it could not be computed, or there are only logits.
        """
        if name not in self.directions:
            raise InputError(self.missing.get(name, f"there are no {name}: only logits were given"))
        return self.directions[name]

    def save_logits(self, path: Path) -> None:
        """Write the file that `load_logits` reads."""
        tensors = {"logits": self.logits.float(), "labels": self.labels}
        if self.training_counts is not None:
            tensors["training_counts"] = self.training_counts
        save_tensors(path, tensors, {"classes": json.dumps(self.classes)})


def load_logits(path: Path) -> ModelOutputs:
    """Read cached logits from a safetensors file with `logits` (N, C) and `labels` (N,).

    The file may also hold `training_counts` (C,), which logit adjustment needs. Its metadata may
    hold `classes`, a JSON list of class names.

    Raises:
        InputError: the file cannot be read, or its contents do not fit together.

    Example:
        >>> fronts.outputs.save_logits(Path("logits.safetensors"))
        >>> hs.load_logits(Path("logits.safetensors")).logits.shape
        torch.Size([600, 3])
    """
    tensors, metadata = read_tensors(path, "logits")
    missing = next((name for name in ("logits", "labels") if name not in tensors), None)
    if missing:
        raise InputError(f"logits: {path} has no {missing!r}; it must hold logits (N, C) and labels (N,)")
    logits = tensors["logits"].float()
    labels = tensors["labels"]
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or labels.is_floating_point():
        raise InputError(
            f"logits: {path} holds logits {tuple(logits.shape)} and labels {labels.dtype} {tuple(labels.shape)}; "
            "they must be (N, C) and whole numbers (N,)"
        )
    if not torch.isfinite(logits).all():
        raise InputError(f"logits: {path} holds NaN or infinite values")
    count = logits.shape[1]
    names = _class_names(metadata.get("classes"), count)
    labels = labels.long()
    if len(names) > count or labels.numel() == 0 or labels.min() < 0 or labels.max() >= len(names):
        raise InputError(f"logits: {path} has labels or {len(names)} class names beyond its {count} logits")
    counts = tensors.get("training_counts")
    if counts is not None and (counts.shape != (len(names),) or (counts < 0).any()):
        raise InputError(
            f"logits: {path} has training_counts of shape {tuple(counts.shape)}; "
            f"they must be {len(names)} counts, none below 0"
        )
    return ModelOutputs(names, labels, logits, counts)


def _class_names(listed: str | None, count: int) -> tuple[str, ...]:
    """Return the class names in a file's metadata, or numbers if there are none."""
    try:
        names = json.loads(listed) if listed else [str(i) for i in range(count)]
    except ValueError:
        names = None
    if not isinstance(names, list):
        raise InputError(f"logits: its classes are {listed!r}; they must be a JSON list of names")
    return tuple(map(str, names))
