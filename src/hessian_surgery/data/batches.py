"""Inputs of a model: a tensor, or a tuple, list or dict of them, with the samples along the first axis."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from hessian_surgery.errors import InputError

Inputs: TypeAlias = "Tensor | tuple[Inputs, ...] | list[Inputs] | dict[str, Inputs]"


def map_tensors(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Apply `function` to every tensor, keeping the structure."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    if isinstance(inputs, dict):
        return {key: map_tensors(function, value) for key, value in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(map_tensors(function, value) for value in inputs)
    if isinstance(inputs, list):
        return [map_tensors(function, value) for value in inputs]
    raise InputError(
        f"data: inputs hold a {type(inputs).__name__}; tensors, or tuples, lists and dicts of them, are needed"
    )


def tensors(inputs: Inputs) -> list[Tensor]:
    """The tensors of a tree, in order."""
    found: list[Tensor] = []
    map_tensors(lambda tensor: found.append(tensor) or tensor, inputs)  # type: ignore[func-returns-value]
    return found


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """The same tensor on `device`; where that is a GPU, without waiting for what it is busy with."""
    return tensor.to(device, non_blocking=device.type == "cuda")


def move(inputs: Inputs, device: torch.device) -> Inputs:
    """The same inputs on `device`."""
    return map_tensors(lambda tensor: sent(tensor, device), inputs)


def channels_last(inputs: Inputs) -> Inputs:
    """Images on a GPU with their channels innermost, which its convolutions take twice as fast; values are the same."""
    return map_tensors(
        lambda tensor: tensor.to(memory_format=torch.channels_last) if tensor.is_cuda and tensor.ndim == 4 else tensor,
        inputs,
    )


def take(inputs: Inputs, positions: Tensor) -> Inputs:
    """The samples at `positions` (n,), in that order."""
    return map_tensors(lambda tensor: tensor[sent(positions, tensor.device)], inputs)


def join(parts: Sequence[Inputs]) -> Inputs:
    """Concatenate batches of the same structure along the samples."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat([part for part in parts if isinstance(part, Tensor)])
    if isinstance(first, dict):
        return {key: join([part[key] for part in parts]) for key in first}  # type: ignore[call-overload, index]
    joined = [join([part[i] for part in parts]) for i in range(len(first))]  # type: ignore[index]
    return tuple(joined) if isinstance(first, tuple) else joined
