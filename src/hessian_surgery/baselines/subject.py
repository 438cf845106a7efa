"""Subject: a model under comparison with all that is computed once, over every image, and then split by index."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from hessian_surgery.directions.family import Directions
from hessian_surgery.directions.logit_changes import AfterStep
from hessian_surgery.errors import InputError
from hessian_surgery.model.head import Head
from hessian_surgery.weights.tensorfile import read_tensors, save_tensors


def _no_weights(_: Tensor, __: Tensor | None) -> Tensor:
    raise InputError("there are no weights to move: only logits are at hand")


@dataclass(frozen=True)
class Subject:
    """N images of C classes as a model sees them; tensors are on the model's device.

    Attributes:
        classes: their names.
        labels: (N,).
        logits: (N, C).
        training_counts: images of each class (C,) that the model was trained on, where that is known.
        head: the linear layer that the logits come from, where there is one.
        features: its inputs (N, d).
        directions: families of directions, by name.
        bias: the head's biases as directions, where it has some.
        after_step: step (p,), positions (n,) → logits (n, C) of these images after the step, by a forward pass;
            None stands for all positions.
        counts: how many directions of each family a method takes that does not say.
        prepared: seconds that each family took to prepare, by name.
        missing: why a family could not be had, by name.
        deepest: the most accuracy that a method may give up; what costs much more is not worth measuring.
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
    counts: Mapping[str, int] = field(default_factory=dict)
    prepared: Mapping[str, float] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    deepest: float = 0.01

    def family(self, name: str) -> Directions:
        """A family of directions."""
        if name not in self.directions:
            raise InputError(self.missing.get(name, f"there are no {name}: only logits are at hand"))
        return self.directions[name]

    def save_logits(self, path: Path) -> None:
        """Write what `load_logits` reads."""
        held = {"logits": self.logits.float(), "labels": self.labels}
        if self.training_counts is not None:
            held["training_counts"] = self.training_counts
        save_tensors(path, held, {"classes": json.dumps(self.classes)})


def load_logits(path: Path) -> Subject:
    """A subject from cached logits: a safetensors file with `logits` (N, C) and `labels` (N,).

    It may hold `training_counts` (C,), which logit adjustment needs, and, in its metadata, `classes`, a JSON list.
    """
    try:
        tensors, metadata = read_tensors(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"logits: {path} cannot be read as safetensors: {error}") from error
    missing = next((name for name in ("logits", "labels") if name not in tensors), None)
    if missing:
        raise InputError(f"logits: {path} has no {missing!r}; it must hold logits (N, C) and labels (N,)")
    logits, labels = tensors["logits"].float(), tensors["labels"]
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or labels.is_floating_point():
        raise InputError(
            f"logits: {path} holds logits {tuple(logits.shape)} and labels {labels.dtype} {tuple(labels.shape)}; "
            "(N, C) and whole numbers (N,) are needed"
        )
    if not torch.isfinite(logits).all():
        raise InputError(f"logits: {path} holds NaN or infinite values")
    count = logits.shape[1]
    names = _names(metadata.get("classes"), count)
    labels = labels.long()
    if len(names) > count or labels.numel() == 0 or labels.min() < 0 or labels.max() >= len(names):
        raise InputError(f"logits: {path} has labels or {len(names)} class names beyond its {count} logits")
    counts = tensors.get("training_counts")
    if counts is not None and (counts.shape != (len(names),) or (counts < 0).any()):
        raise InputError(f"logits: training_counts has shape {tuple(counts.shape)}; {len(names)} counts are needed")
    return Subject(names, labels, logits, counts)


def _names(listed: str | None, count: int) -> tuple[str, ...]:
    """Class names from a file's metadata, or numbers."""
    try:
        names = json.loads(listed) if listed else [str(i) for i in range(count)]
    except ValueError:
        names = None
    if not isinstance(names, list):
        raise InputError(f"logits: its classes are {listed!r}; a JSON list of names is needed")
    return tuple(map(str, names))
