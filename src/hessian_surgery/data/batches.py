"""Inputs of a model: a tensor, or tensors in tuples, lists or dicts, one sample per row."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from hessian_surgery.errors import InputError

Inputs: TypeAlias = "Tensor | tuple[Inputs, ...] | list[Inputs] | dict[str, Inputs]"


def map_tensors(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Apply `function` to every tensor and keep the structure."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    if isinstance(inputs, dict):
        return {key: map_tensors(function, value) for key, value in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(map_tensors(function, value) for value in inputs)
    if isinstance(inputs, list):
        return [map_tensors(function, value) for value in inputs]
    raise InputError(f"data: inputs hold a {type(inputs).__name__}; give tensors, or tuples, lists and dicts of them")


def tensors(inputs: Inputs) -> list[Tensor]:
    """The tensors that the inputs hold, in order."""
    found: list[Tensor] = []

    def collect(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(collect, inputs)
    return found


def move_tensor(tensor: Tensor, device: torch.device) -> Tensor:
    """The same tensor on `device`; a busy GPU is not waited for."""
    return tensor.to(device, non_blocking=device.type == "cuda")


def move(inputs: Inputs, device: torch.device) -> Inputs:
    """The same inputs on `device`."""
    return map_tensors(lambda tensor: move_tensor(tensor, device), inputs)


def channels_last(inputs: Inputs) -> Inputs:
    """The same values, with channels innermost in memory in every tensor that can hold images."""
    return map_tensors(
        lambda tensor: tensor.to(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor, inputs
    )


def take(inputs: Inputs, positions: Tensor) -> Inputs:
    """The samples at `positions` (n,), in that order."""
    return map_tensors(lambda tensor: tensor[move_tensor(positions, tensor.device)], inputs)


def join(parts: Sequence[Inputs]) -> Inputs:
    """Concatenate batches of the same structure, sample after sample."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat([part for part in parts if isinstance(part, Tensor)])
    if isinstance(first, dict):
        return {key: join([part[key] for part in parts]) for key in first}  # type: ignore[call-overload, index]
    joined = [join([part[i] for part in parts]) for i in range(len(first))]  # type: ignore[index]
    return tuple(joined) if isinstance(first, tuple) else joined
