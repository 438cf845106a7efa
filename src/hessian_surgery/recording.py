"""A function recorded as a CUDA graph and replayed: on a fast GPU launching kernels takes longer than running them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

# Devices on which a recording has failed: each failure costs memory that is not given back, so it is not tried again.
_refused: set[torch.device] = set()


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    # One for all recordings: autograd runs a backward pass on the stream of its forward pass.
    return torch.cuda.Stream(device)


@cache
def _pool(device: torch.device) -> Any:
    # One for all recordings, too. They may overwrite each other's results, but each result is copied at once.
    with torch.cuda.device(device):
        return torch.cuda.graph_pool_handle()


@contextmanager
def recordable(device: torch.device) -> Iterator[None]:
    """Autograd graphs built inside can be recorded later."""
    if device.type != "cuda":
        yield
        return
    stream = _stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)


def recorded(function: Callable[..., Tensor], *examples: Tensor) -> Callable[..., Tensor]:
    """The same function of tensors like `examples`, replayed where the device and the function allow it.

    What cannot be recorded (a layer that asks the GPU for a number in the middle) is run as it is.
    """
    device = examples[0].device
    if device.type != "cuda" or device in _refused:
        return function
    arguments = [example.clone() for example in examples]
    with recordable(device):
        function(*arguments)  # what is wrong with the function itself shows here
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=_pool(device), stream=_stream(device)):
            result = function(*arguments)
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        _refused.add(device)
        return function

    def replay(*given: Tensor) -> Tensor:
        for argument, tensor in zip(arguments, given, strict=True):
            argument.copy_(tensor)
        graph.replay()
        return result.clone()

    # The recording reads what the function holds, such as the activations of a kept graph.
    replay.function = function  # type: ignore[attr-defined]
    return replay


def batchwise(
    function: Callable[..., Tensor], module: nn.Module, size: int, rows: bool = True
) -> Callable[..., Tensor]:
    """The same function of tensors with at most `size` samples along their first axis, recorded at its first call.

    Fewer samples are filled up with copies of the first: each must be treated on its own, as in evaluation mode. What
    is not a tensor on a GPU, or has another shape than at first, is passed on as it is.

    Args:
        function: of one batch.
        module: that it runs; what it holds beside its weights is kept as long as the recording, which reads it.
        size: samples of the recorded batch.
        rows: the function gives a row for each sample, of which those are returned that were asked for.
    """
    kept: list[Callable[..., Tensor]] = []
    shapes: list[torch.Size] = []
    read: list[Tensor] = []

    def replay(*batch: Any) -> Tensor:
        if not all(isinstance(part, Tensor) and part.is_cuda and len(part) <= size for part in batch):
            return function(*batch)
        filled = [torch.cat([part, part[:1].expand(size - len(part), *part.shape[1:])]) for part in batch]
        if not kept:
            kept.append(recorded(function, *filled))
            shapes.extend(part.shape for part in filled)
            read.extend(module.buffers())
        if shapes != [part.shape for part in filled]:
            return function(*batch)
        found = kept[0](*filled)
        return found[: len(batch[0])] if rows else found

    return replay
