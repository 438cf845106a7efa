"""Edits of a model: a map of its logits, another head, or a step in weight space."""

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
    from hessian_surgery.baselines.outputs import ModelOutputs


@dataclass(frozen=True)
class LogitMap:
    """z → scale · z + shift, with one scale and one shift per class (C,)."""

    scale: Tensor
    shift: Tensor

    def __call__(self, logits: Tensor) -> Tensor:
        """Map logits (n, C)."""
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

    @property
    def logit_shift(self) -> Tensor | None:
        """What a step along the head's biases alone adds to each logit (C,); None for others."""
        width = len(self.directions) - len(self.directions.changes)
        if width == 0 or self.coefficients[width:].any():
            return None
        return torch.from_numpy(self.coefficients[:width] * self.directions.bias_unit)


Edit: TypeAlias = LogitMap | HeadEdit | WeightStep


def apply_edits(module: nn.Module, head: Head | None, edits: Sequence[Edit]) -> None:
    """Apply a chain of edits to a module's weights; maps of logits are folded into the head.

    Weight steps are applied first, whatever the order in the chain: a map acts on the logits of
    the final weights. The module may be a copy of the one that the edits were fitted to.

    Raises:
        InputError: the module has no head to put the edit in.
    """
    for edit in sorted(edits, key=lambda edit: not isinstance(edit, WeightStep)):
        if isinstance(edit, WeightStep):
            edit.directions.space.of(module).perturb(edit.directions.step(edit.coefficients))
        else:
            _edit_head(module, head, edit)


@torch.no_grad()
def _edit_head(module: nn.Module, head: Head | None, edit: LogitMap | HeadEdit) -> None:
    if head is None:
        raise InputError("model: its logits do not come from a linear layer, so nothing can be folded into it")
    layer = module.get_submodule(head.name)
    assert isinstance(layer, nn.Linear)
    if isinstance(edit, HeadEdit):
        weight = edit.weight
        bias = edit.bias
    else:
        present = torch.zeros(layer.out_features) if layer.bias is None else layer.bias.detach().cpu()
        scale = edit.scale.cpu()
        weight = layer.weight.detach().cpu() * scale[:, None]
        bias = scale * present + edit.shift.cpu()
    if layer.bias is None and bias.any():
        raise InputError(f"model: its head {head.name!r} has no bias to add a class bias to")
    layer.weight.copy_(weight)
    if layer.bias is not None:
        layer.bias.copy_(bias)


@dataclass(frozen=True, eq=False)
class ChainState:
    """The model somewhere in a chain of methods: what the next method starts from.

    Attributes:
        logits: logits of all images (N, C).
        scale: the product of the scales of all maps so far (C,). It multiplies the change that a
            later weight step makes.
        unmapped: logits (N, C) of the weights so far, before any map.
        edits: the edits so far, in order.
    """

    logits: Tensor
    scale: Tensor
    unmapped: Tensor
    edits: tuple[Edit, ...] = ()

    @staticmethod
    def initial(logits: Tensor) -> "ChainState":
        """Return the state before any edit."""
        return ChainState(logits, torch.ones(logits.shape[1], device=logits.device), logits)

    def after(self, edit: Edit, outputs: "ModelOutputs") -> "ChainState":
        """Return the state after a further edit; a weight step is measured by a forward pass."""
        edits = (*self.edits, edit)
        if isinstance(edit, LogitMap):
            return replace(self, logits=edit(self.logits), scale=self.scale * edit.scale.to(self.scale), edits=edits)
        if isinstance(edit, HeadEdit):
            if outputs.features is None:
                raise InputError("model: its logits do not come from a linear layer that could be fitted again")
            logits = outputs.features @ edit.weight.to(outputs.features).T + edit.bias.to(outputs.features)
            return replace(self, logits=logits, unmapped=logits, edits=edits)
        if not edit.coefficients.any():
            return replace(self, edits=edits)
        shift = edit.logit_shift
        unmapped = self._unmapped_after(edit, outputs) if shift is None else self.unmapped + shift.to(self.unmapped)
        return replace(self, logits=self._map(unmapped), unmapped=unmapped, edits=edits)

    def logits_after(self, edit: WeightStep, outputs: "ModelOutputs", positions: Tensor) -> Tensor:
        """Measure the logits (n, C) of some images after a further step, by a forward pass."""
        return self._map(self._unmapped_after(edit, outputs, positions), positions)

    def _unmapped_after(self, edit: WeightStep, outputs: "ModelOutputs", positions: Tensor | None = None) -> Tensor:
        """Measure the logits of the weights after a further step, before any map."""
        steps = [e.directions.step(e.coefficients) for e in (*self.edits, edit) if isinstance(e, WeightStep)]
        return outputs.after_step(torch.stack(steps).sum(dim=0), positions)

    def _map(self, unmapped: Tensor, positions: Tensor | None = None) -> Tensor:
        """Apply the maps so far to the logits of moved weights."""
        whole = slice(None) if positions is None else positions
        return self.logits[whole] + self.scale * (unmapped - self.unmapped[whole])
