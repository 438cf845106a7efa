"""Recording work as a CUDA graph and replaying it.

On a fast GPU launching the kernels of small batches takes longer than running them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hessian_surgery.ranks import present

Result = TypeVar("Result")

# Devices on which a recording has failed. They are not tried again: a failure leaks memory.
_refused: set[torch.device] = set()


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    # One for all recordings: autograd runs a backward pass on the stream of its forward pass.
    return torch.cuda.Stream(device)


@cache
def _pool(device: torch.device) -> Any:
    # One for all functions: they may overwrite each other's results, but each is copied at once.
    with torch.cuda.device(device):
        return torch.cuda.graph_pool_handle()


@contextmanager
def recordable(device: torch.device) -> Iterator[None]:
    """A block whose autograd graphs can be recorded later."""
    if device.type != "cuda":
        yield
        return
    stream = _stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)


def _mode() -> str:
    """Which threads must not disturb a recording; where ranks exchange, NCCL's own thread may."""
    return "thread_local" if present().joined else "global"


def can_record(device: torch.device) -> bool:
    """Whether recording on a device is worth a try."""
    return device.type == "cuda" and device not in _refused


def record(
    work: Callable[[], Result], device: torch.device, warm_up: int = 1, pool: Any = None
) -> tuple[torch.cuda.CUDAGraph, Result] | None:
    """Record some work as a CUDA graph.

    Args:
        work: what to record.
        device: a GPU.
        warm_up: how often to run the work beforehand, on a side stream as PyTorch asks.
        pool: the memory pool of the recording; by default its own.

    Returns:
        The graph, and the work's result, which each replay overwrites. None if the work cannot be
        recorded, such as a layer that asks the GPU for a number in the middle.
    """
    with recordable(device):
        for _ in range(warm_up):
            work()  # a bug in the work itself shows here
    graph = torch.cuda.CUDAGraph()
    try:
        # A failed recording leaves its stream as the current one; the outer context undoes that.
        with (
            torch.cuda.stream(torch.cuda.current_stream(device)),
            torch.cuda.graph(graph, pool=pool, stream=_stream(device), capture_error_mode=_mode()),
        ):
            result = work()
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        _refused.add(device)
        # A failed recording leaves the generator waiting for its end, and random layers would fail;
        # a copy of its state does not wait.
        generator = torch.cuda.default_generators[device.index or 0]
        generator.graphsafe_set_state(generator.clone_state())
        return None
    return graph, result


class _Replay:
    """A recorded function of tensors.

    Attributes:
        function: the function itself. The recording reads what it holds, such as activations.
    """

    def __init__(
        self, function: Callable[..., Tensor], graph: torch.cuda.CUDAGraph, arguments: list[Tensor], result: Tensor
    ) -> None:
        self.function = function
        self._graph = graph
        self._arguments = arguments
        self._result = result

    def __call__(self, *given: Tensor) -> Tensor:
        for argument, tensor in zip(self._arguments, given, strict=True):
            argument.copy_(tensor)
        self._graph.replay()
        return self._result.clone()


def recorded_function(function: Callable[..., Tensor], *examples: Tensor) -> Callable[..., Tensor]:
    """The same function of tensors like `examples`, replayed from a CUDA graph if possible."""
    device = examples[0].device
    if not can_record(device):
        return function
    arguments = [example.clone() for example in examples]
    recording = record(lambda: function(*arguments), device, pool=_pool(device))
    return function if recording is None else _Replay(function, recording[0], arguments, recording[1])


def batchwise(
    function: Callable[..., Tensor], module: nn.Module, size: int, rows: bool = True
) -> Callable[..., Tensor]:
    """The same function of tensors with at most `size` samples, recorded at its first call.

    Samples are along the first axis. A smaller batch is filled up with copies of its first sample,
    so the function must treat each sample on its own, as layers do in evaluation mode. A batch that
    is not on a GPU, is larger, or has another shape than the first is passed to the function as is.

    Args:
        function: a function of one batch.
        module: the module that it runs. The module's buffers are kept alive: the recording reads
            them.
        size: samples of the recorded batch.
        rows: whether the function gives a row for each sample; those of the copies are dropped.
    """
    recorded: Callable[..., Tensor] | None = None
    shapes: list[torch.Size] = []
    buffers: list[Tensor] = []

    def replay(*batch: Any) -> Tensor:
        nonlocal recorded
        if not all(isinstance(part, Tensor) and part.is_cuda and len(part) <= size for part in batch):
            return function(*batch)
        filled = [torch.cat([part, part[:1].expand(size - len(part), *part.shape[1:])]) for part in batch]
        if recorded is None:
            recorded = recorded_function(function, *filled)
            shapes.extend(part.shape for part in filled)
            buffers.extend(module.buffers())
        if shapes != [part.shape for part in filled]:
            return function(*batch)
        found = recorded(*filled)
        return found[: len(batch[0])] if rows else found

    return replay
