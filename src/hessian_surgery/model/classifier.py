"""Classifier: a module and how a batch of inputs becomes logits; evaluation leaves no trace on the module."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hessian_surgery.data.batches import Inputs
from hessian_surgery.errors import InputError


def call_module(module: nn.Module, inputs: Inputs) -> Any:
    """`module(x)`, `module(*tuple)` or `module(**dict)`, as the inputs' structure asks."""
    if isinstance(inputs, dict):
        return module(**inputs)
    if isinstance(inputs, (tuple, list)):
        return module(*inputs)
    return module(inputs)


def _precision_settings() -> list[tuple[Any, str, object]]:
    """Where torch keeps its reduced-precision switches, each with its exact value; torch 2.9 has moved them."""
    backends: Any = torch.backends
    if not hasattr(backends.cudnn, "conv"):
        return [(backends.cuda.matmul, "allow_tf32", False), (backends.cudnn, "allow_tf32", False)]
    places = (
        backends.cuda.matmul,
        backends.cudnn.conv,
        backends.cudnn.rnn,
        backends.mkldnn.matmul,
        backends.mkldnn.conv,
    )
    return [(place, "fp32_precision", "ieee") for place in places]


@contextmanager
def deterministic_kernels(exact: bool = False) -> Iterator[None]:
    """The same kernels every time, so that the same seed gives the same run.

    Args:
        exact: full float32 as well, whatever the user has allowed: with TF32's ten-bit mantissa Hessian products are
            not symmetric enough for spikes to converge.
    """
    settings: list[tuple[Any, str, object]] = _precision_settings() if exact else []
    settings += [(torch.backends.cudnn, "deterministic", True), (torch.backends.cudnn, "benchmark", False)]
    before = [getattr(place, name) for place, name, _ in settings]
    try:
        for place, name, value in settings:
            setattr(place, name, value)
        yield
    finally:
        for (place, name, _), value in zip(settings, before, strict=True):
            setattr(place, name, value)


@dataclass(frozen=True)
class Classifier:
    """A module whose output is read as logits.

    Attributes:
        module: the trained network.
        forward: called as `forward(module, inputs)`; its result is a tensor (n, C), or an object or mapping
            with `logits`, or a tuple that starts with them. The default covers tensors, tuples and dicts.
    """

    module: nn.Module
    forward: Callable[[nn.Module, Inputs], Any] = call_module

    @property
    def device(self) -> torch.device:
        """Where the module's first parameter lives."""
        return next(self.module.parameters()).device

    def logits(self, inputs: Inputs) -> Tensor:
        """Logits (n, C) of a batch."""
        output = self.forward(self.module, inputs)
        if isinstance(output, dict):
            output = output.get("logits")
        elif hasattr(output, "logits"):
            output = output.logits
        elif isinstance(output, (tuple, list)) and output:
            output = output[0]
        if not isinstance(output, Tensor) or output.ndim != 2:
            got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise InputError(
                f"model: its output is {got}, where logits of shape (batch, classes) are needed; "
                "pass Classifier(module, forward=...) to say how a batch becomes logits"
            )
        return output

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode; mode, .grad, requires_grad, buffers and random state come back bit for bit."""
        modules = list(self.module.modules())
        modes = [module.training for module in modules]
        parameters = [(p, p.grad, p.requires_grad) for p in self.module.parameters()]
        # Not named_buffers(): a buffer that is None, to be filled later, must be None again.
        buffers = [(module, dict(module._buffers)) for module in modules if module._buffers]
        contents = _by_kind(self.module.buffers())
        saved = [_flat(same) for same in contents]
        random_state = torch.get_rng_state()
        cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        self.module.eval()
        try:
            with deterministic_kernels():
                yield
        finally:
            for module, training in zip(modules, modes, strict=True):
                if module.training != training:
                    module.training = training
            for parameter, grad, requires_grad in parameters:
                if parameter.grad is not grad:
                    parameter.grad = grad
                parameter.requires_grad_(requires_grad)
            for module, registered in buffers:
                module._buffers.update(registered)
            for same, values in zip(contents, saved, strict=True):
                _undo(same, values)
            torch.set_rng_state(random_state)
            if cuda_states:
                torch.cuda.set_rng_state_all(cuda_states)


def _by_kind(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """The tensors in groups of one device and dtype, each of which is copied or compared at once."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    return list(kinds.values())


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


@torch.no_grad()
def _undo(buffers: list[Tensor], saved: Tensor) -> None:
    """Bring buffers back to their saved values."""
    # Writing back what has not changed would still tell autograd that it has, and spoil a Hessian's kept graph.
    if torch.equal(_flat(buffers), saved):
        return
    for buffer, values in zip(buffers, saved.split([buffer.numel() for buffer in buffers]), strict=True):
        if not torch.equal(buffer.reshape(-1), values):
            buffer.copy_(values.view_as(buffer))


def as_classifier(model: nn.Module | Classifier) -> Classifier:
    """A `Classifier`, made from a bare module where needed."""
    return model if isinstance(model, Classifier) else Classifier(model)
