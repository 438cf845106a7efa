"""Which weights an operation changed: how many of how many, by groups of tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

# So many groups are named in a line.
NAMED = 4
BIASES, WEIGHTS = "the head's biases", "the head's weights"


@dataclass(frozen=True)
class ChangedGroup:
    """A group of tensors with changed weights.

    Attributes:
        name: "the head's biases", "the head's weights", or the first part of the tensors' names.
        weights: how many weights changed.
        of: how many there are.
    """

    name: str
    weights: int
    of: int

    def __str__(self) -> str:
        return self.name if self.weights == self.of else f"{self.name} ({self.weights:,} of {self.of:,})"


@dataclass(frozen=True)
class WeightChanges:
    """What changed in a model.

    Attributes:
        weights: how many weights changed.
        of: how many the model has; buffers do not count.
        groups: where they are, in the model's order.
        patch_bytes: size of `patch.safetensors`; None as long as there is no such file.
    """

    weights: int
    of: int
    groups: tuple[ChangedGroup, ...]
    patch_bytes: int | None = None

    @property
    def only_biases(self) -> bool:
        """Whether nothing but the head's biases changed."""
        return [group.name for group in self.groups] == [BIASES]

    def as_dict(self) -> dict[str, Any]:
        """The form that `result.json` holds."""
        return asdict(self) | {"groups": [asdict(group) for group in self.groups]}

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> "WeightChanges":
        """The inverse of `as_dict`."""
        groups = tuple(ChangedGroup(**group) for group in content["groups"])
        return WeightChanges(content["weights"], content["of"], groups, content["patch_bytes"])

    def __str__(self) -> str:
        if not self.weights:
            return f"none of {self.of:,} weights"
        named = [str(group) for group in self.groups]
        if len(named) > NAMED + 1:
            named = [*named[: NAMED - 1], f"{len(named) - NAMED} groups more", named[-1]]
        size = "" if self.patch_bytes is None else f"; the patch has {self.patch_bytes:,} bytes"
        return f"{self.weights:,} of {self.of:,} weights: {', '.join(named)}{size}"


def count_changes(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], parameters: Sequence[Sequence[str]], head: str | None
) -> WeightChanges:
    """Compare two states of a model.

    Args:
        before: tensors by name.
        after: the same after the operation.
        parameters: all names of each parameter; a tied weight has several.
        head: name of the last linear layer; empty if the model is just this layer, None if there is
            none.
    """
    total = 0
    changed: dict[str, tuple[int, int]] = {}
    for names in parameters:
        name = next((name for name in names if name in before), None)
        if name is None:
            continue
        total += before[name].numel()
        group = _group(name, head)
        moved, of = changed.get(group, (0, 0))
        changed[group] = (moved + int((before[name] != after[name]).sum()), of + before[name].numel())
    groups = tuple(ChangedGroup(name, moved, of) for name, (moved, of) in changed.items() if moved)
    return WeightChanges(sum(group.weights for group in groups), total, groups)


def _group(name: str, head: str | None) -> str:
    prefix = "" if not head else f"{head}."
    if head is not None and name in (f"{prefix}bias", f"{prefix}weight"):
        return BIASES if name.endswith("bias") else WEIGHTS
    return name.removeprefix("base_model.model.").partition(".")[0]  # the prefix is in all of peft's names
