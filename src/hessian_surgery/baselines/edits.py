"""Edit: what a method does to a model, as a map of logits, another head, or a step in weight space."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor, nn

from hessian_surgery.directions.family import Directions
from hessian_surgery.errors import InputError
from hessian_surgery.model.head import Head
from hessian_surgery.types import Array

if TYPE_CHECKING:
    from hessian_surgery.baselines.subject import Subject


@dataclass(frozen=True)
class LogitMap:
    """z → scale · z + shift, with one scale and one shift per class (C,)."""

    scale: Tensor
    shift: Tensor

    def __call__(self, logits: Tensor) -> Tensor:
        """Mapped logits (n, C)."""
        return logits * self.scale.to(logits) + self.shift.to(logits)


@dataclass(frozen=True)
class HeadEdit:
    """Another last layer: weight (C, d) and bias (C,)."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class WeightStep:
    """A step along directions, with their coefficients (K,)."""

    directions: Directions
    coefficients: Array


Edit: TypeAlias = LogitMap | HeadEdit | WeightStep


def apply_edits(module: nn.Module, head: Head | None, edits: Sequence[Edit]) -> None:
    """Carry out a chain of edits on a module's weights; maps of logits are folded into the head.

    Steps come first: a map is of the logits that the weights give in the end, also where a step came after it. The
    module may be a copy of the one that the edits were fitted to.

    Raises:
        InputError: the module has no head that the edit could go into.
    """
    for edit in sorted(edits, key=lambda edit: not isinstance(edit, WeightStep)):
        if isinstance(edit, WeightStep):
            edit.directions.space.of(module).perturb(edit.directions.step(edit.coefficients))
        else:
            _edit_head(module, head, edit)


@torch.no_grad()
def _edit_head(module: nn.Module, head: Head | None, edit: LogitMap | HeadEdit) -> None:
    if head is None:
        raise InputError("model: its logits do not come from a linear layer, so that nothing can be folded into it")
    layer = module.get_submodule(head.name)
    assert isinstance(layer, nn.Linear)
    if isinstance(edit, HeadEdit):
        weight, bias = edit.weight, edit.bias
    else:
        present = torch.zeros(layer.out_features) if layer.bias is None else layer.bias.detach().cpu()
        scale = edit.scale.cpu()
        weight, bias = layer.weight.detach().cpu() * scale[:, None], scale * present + edit.shift.cpu()
    if layer.bias is None and bias.any():
        raise InputError(f"model: its head {head.name!r} has no bias to add a class bias to")
    layer.weight.copy_(weight)
    if layer.bias is not None:
        layer.bias.copy_(bias)


@dataclass(frozen=True)
class Start:
    """Where a method begins: the model as it is, or what earlier methods of a chain have made of it.

    Attributes:
        logits: of all images (N, C).
        scale: what earlier maps of the logits multiply a later change of the weights' logits by (C,).
        unmapped: logits (N, C) of the weights so far, before any map.
        edits: what has been done, in order.
    """

    logits: Tensor
    scale: Tensor
    unmapped: Tensor
    edits: tuple[Edit, ...] = ()

    @staticmethod
    def of(logits: Tensor) -> "Start":
        """The model as it is."""
        return Start(logits, torch.ones(logits.shape[1], device=logits.device), logits)

    def after(self, edit: Edit, subject: "Subject") -> "Start":
        """Where the next method of a chain begins; a step in weight space is measured by a forward pass."""
        edits = (*self.edits, edit)
        if isinstance(edit, LogitMap):
            return replace(self, logits=edit(self.logits), scale=self.scale * edit.scale.to(self.scale), edits=edits)
        if isinstance(edit, HeadEdit):
            if subject.features is None:
                raise InputError("model: its logits do not come from a linear layer that could be fitted anew")
            logits = subject.features @ edit.weight.to(subject.features).T + edit.bias.to(subject.features)
            return replace(self, logits=logits, unmapped=logits, edits=edits)
        if not edit.coefficients.any():
            return replace(self, edits=edits)
        unmapped = self.moved(edit, subject)
        return replace(self, logits=self._mapped(unmapped), unmapped=unmapped, edits=edits)

    def looked_at(self, edit: WeightStep, subject: "Subject", positions: Tensor) -> Tensor:
        """Logits (n, C) of some images after a further step, by a forward pass."""
        return self._mapped(self.moved(edit, subject, positions), positions)

    def moved(self, edit: WeightStep, subject: "Subject", positions: Tensor | None = None) -> Tensor:
        """Logits of the weights after a further step, before any map, by a forward pass."""
        steps = [e.directions.step(e.coefficients) for e in (*self.edits, edit) if isinstance(e, WeightStep)]
        return subject.after_step(torch.stack(steps).sum(dim=0), positions)

    def _mapped(self, unmapped: Tensor, positions: Tensor | None = None) -> Tensor:
        """What the maps so far make of the logits of moved weights."""
        whole = slice(None) if positions is None else positions
        return self.logits[whole] + self.scale * (unmapped - self.unmapped[whole])
