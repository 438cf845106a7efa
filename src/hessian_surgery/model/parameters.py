"""ParameterSpace: the chosen weights of a module as one vector θ of length p."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import NewType

import torch
from torch import Tensor, nn

from hessian_surgery.errors import InputError
from hessian_surgery.short_repr import short_repr
from hessian_surgery.weights.adapter import is_adapted, refuse_beside_adapter, refuse_merged

Snapshot = NewType("Snapshot", "tuple[Tensor, ...]")


@dataclass(frozen=True)
class ParameterSpace:
    """The parameters that may move, in the module's order; a tied weight counts once.

    Attributes:
        names: names in `module.named_parameters()`.
        parameters: the parameters themselves, not copies.
        aliases: all names of each parameter; a tied weight has several.

    Example:
        >>> space = hs.parameter_space(model)
        >>> space.dimension, space.names[0]
        (51, '0.weight')
    """

    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    aliases: tuple[tuple[str, ...], ...] = ()

    __repr__ = short_repr

    @property
    def dimension(self) -> int:
        """The number of weights, p."""
        return sum(parameter.numel() for parameter in self.parameters)

    @cached_property
    def dtype(self) -> torch.dtype:
        """The dtype of flat vectors: at least float32."""
        dtype = torch.float32
        for parameter in self.parameters:
            dtype = torch.promote_types(dtype, parameter.dtype)
        return dtype

    @property
    def device(self) -> torch.device:
        """The device of flat vectors: that of the first parameter."""
        return self.parameters[0].device

    def of(self, module: nn.Module) -> "ParameterSpace":
        """The weights of the same names in another module, such as a copy."""
        parameters = dict(module.named_parameters())
        return ParameterSpace(self.names, tuple(parameters[name] for name in self.names), self.aliases)

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """Flatten tensors shaped like the parameters into one vector (p,)."""
        return torch.cat([tensor.reshape(-1).to(self.device, self.dtype) for tensor in tensors])

    def split(self, vector: Tensor) -> list[Tensor]:
        """Split a vector (p,) into tensors like the parameters, as views if possible."""
        pieces = vector.split([parameter.numel() for parameter in self.parameters])
        pairs = zip(pieces, self.parameters, strict=True)
        return [piece.view_as(parameter).to(parameter.device, parameter.dtype) for piece, parameter in pairs]

    @torch.no_grad()
    def perturb(self, direction: Tensor, scale: float = 1.0) -> None:
        """θ ← θ + scale · direction, in place; `direction` is (p,)."""
        torch._foreach_add_(self.parameters, self.split(direction), alpha=scale)

    def snapshot(self) -> Snapshot:
        """Copy the weights, for `restore`."""
        return Snapshot(tuple(parameter.detach().clone() for parameter in self.parameters))

    @torch.no_grad()
    def restore(self, snapshot: Snapshot) -> None:
        """Bring back a snapshot bit for bit."""
        torch._foreach_copy_(self.parameters, snapshot)

    @contextmanager
    def keeping_weights(self) -> Iterator[Snapshot]:
        """Restore the weights bit for bit after this block, even if it raises."""
        before = self.snapshot()
        try:
            yield before
        finally:
            self.restore(before)

    @contextmanager
    def freezing_others(self, module: nn.Module) -> Iterator[None]:
        """Switch off requires_grad in this block for the module's weights outside the space."""
        chosen = {id(parameter) for parameter in self.parameters}
        others = [p for p in module.parameters() if p.requires_grad and id(p) not in chosen]
        try:
            for parameter in others:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in others:
                parameter.requires_grad_(True)

    @torch.no_grad()
    def round_to(self, dtypes: Mapping[str, torch.dtype]) -> None:
        """Round each parameter to the dtype that `dtypes` gives for one of its names."""
        for names, parameter in zip(self.aliases, self.parameters, strict=True):
            dtype = next((dtypes[name] for name in names if name in dtypes), parameter.dtype)
            parameter.copy_(parameter.to(dtype))


def parameter_space(module: nn.Module, pattern: str = "*") -> ParameterSpace:
    """Choose the trainable floating-point parameters whose name matches a glob, such as `layer4.*`.

    Raises:
        InputError: no trainable parameter matches, or they are parts of weights.

    Example:
        >>> hs.parameter_space(model, "2.*").names
        ('2.weight', '2.bias')
    """
    named = [
        (name, parameter)
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and parameter.is_floating_point() and fnmatchcase(name, pattern)
    ]
    if not named:
        example = next((name for name, p in module.named_parameters() if p.requires_grad), None)
        none = "load the adapter with is_trainable=True" if is_adapted(module) else "set requires_grad on some"
        hint = f"names look like {example!r}" if example else f"the model has none: {none}"
        if any(fnmatchcase(name, pattern) for name, _ in module.named_parameters()):
            hint = f"those that match are frozen (requires_grad is off); {hint}"
        raise InputError(f"parameters: no trainable parameter matches {pattern!r}; {hint}")
    _refuse_spread(module, named)
    names, parameters = zip(*named, strict=True)
    refuse_merged(module)
    refuse_beside_adapter(module, names)
    every = list(module.named_parameters(remove_duplicate=False))
    aliases = tuple(tuple(name for name, other in every if other is parameter) for parameter in parameters)
    return ParameterSpace(names, parameters, aliases)


def _refuse_spread(module: nn.Module, named: Sequence[tuple[str, nn.Parameter]]) -> None:
    """Refuse a module whose weights or passes are shared among processes already."""
    if isinstance(module, nn.parallel.DistributedDataParallel):
        raise InputError("model: it is wrapped in DistributedDataParallel; give its .module")
    # A DTensor wraps its local part; asking for it by name spares the import of torch.distributed.
    parted = next((name for name, parameter in named if hasattr(parameter, "_local_tensor")), None)
    if parted is not None:
        raise InputError(
            f"model: {parted!r} is a DTensor, as of FSDP2; give a model with whole weights on every rank, "
            "such as one that loads get_model_state_dict(..., full_state_dict=True)"
        )


def refuse_half_precision(space: ParameterSpace) -> None:
    """Raise an InputError if weights are held in less than float32."""
    half = next((n for n, p in zip(space.names, space.parameters, strict=True) if p.element_size() < 4), None)
    if half is not None:
        raise InputError(
            f"model: {half!r} is held in half precision, where small steps round away; call model.float() first "
            "(stored_as keeps the file's dtype)"
        )
