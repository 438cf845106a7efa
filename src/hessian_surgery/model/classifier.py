"""Classifier: a module, and how it turns inputs into logits; evaluating it leaves no trace."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from hessian_surgery.data import batches
from hessian_surgery.data.batches import Inputs
from hessian_surgery.errors import InputError
from hessian_surgery.model.batch_norm import quick_batch_norm
from hessian_surgery.short_repr import short_repr


def call_module(module: nn.Module, inputs: Inputs) -> Any:
    """Call `module(x)`, `module(*tuple)` or `module(**dict)`, depending on the inputs."""
    if isinstance(inputs, dict):
        return module(**inputs)
    if isinstance(inputs, (tuple, list)):
        return module(*inputs)
    return module(inputs)


def _precision_settings() -> list[tuple[Any, str, object]]:
    """Torch's switches for reduced precision, each with its exact setting; torch 2.9 moved them."""
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
    """Use deterministic kernels in this block: the same seed then gives the same run.

    Args:
        exact: compute in full float32 too, whatever the user allows. With TF32's ten-bit mantissa,
            Hessian products are not symmetric enough for spikes to converge.
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
        forward: function of (module, inputs). It returns logits (n, C), an object or dict with
            `logits`, or a tuple that starts with them. The default takes tensors, tuples and dicts.
        channels_last: whether images pass with channels innermost in memory, which many layers
            work faster on; False leaves inputs as they come. None does so on a GPU, and leaves
            `operate` and the like to find out what is faster on a CPU.

    Example:
        >>> doubled = hs.Classifier(model, forward=lambda module, inputs: 2 * module(inputs))
        >>> doubled.logits(heldout.inputs()).shape
        torch.Size([600, 3])
    """

    module: nn.Module
    forward: Callable[[nn.Module, Inputs], Any] = call_module
    channels_last: bool | None = None

    __repr__ = short_repr

    @property
    def device(self) -> torch.device:
        """The device of the module's first parameter."""
        return next(self.module.parameters()).device

    def logits(self, inputs: Inputs) -> Tensor:
        """Logits (n, C) of a batch."""
        innermost = self.device.type == "cuda" if self.channels_last is None else self.channels_last
        output = self.forward(self.module, batches.channels_last(inputs) if innermost else inputs)
        if isinstance(output, dict):
            output = output.get("logits")
        elif hasattr(output, "logits"):
            output = output.logits
        elif isinstance(output, (tuple, list)) and output:
            output = output[0]
        if not isinstance(output, Tensor) or output.ndim != 2:
            got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise InputError(
                f"model: its output is {got}, not logits of shape (batch, classes); "
                "pass Classifier(module, forward=...) to say how a batch becomes logits"
            )
        return output

    def as_inputs_come(self) -> "Classifier":
        """The same model; its inputs keep their memory format."""
        return replace(self, channels_last=False)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch to evaluation mode in this block.

        Modes, .grad, requires_grad, buffers and random state come back bit for bit; inside another
        such block only buffers and random state, the rest when that ends.
        """
        if self.module in _evaluating:
            with _keeping_values(self.module):
                yield
            return
        modules = list(self.module.modules())
        modes = [module.training for module in modules]
        parameters = [(p, p.grad, p.requires_grad) for p in self.module.parameters()]
        # Not named_buffers(), which leaves out buffers that are None: they must be None again.
        buffers = [(module, dict(module._buffers)) for module in modules if module._buffers]
        _evaluating[self.module] = _Inside(modules, buffers, _by_kind(self.module.buffers()))
        quick = quick_batch_norm() if self.device.type == "cuda" else nullcontext()
        try:
            with _keeping_values(self.module), deterministic_kernels(), quick:
                yield
        finally:
            del _evaluating[self.module]
            for module, training in zip(modules, modes, strict=True):
                if module.training != training:
                    module.training = training
            for parameter, grad, requires_grad in parameters:
                if parameter.grad is not grad:
                    parameter.grad = grad
                parameter.requires_grad_(requires_grad)


@dataclass(frozen=True)
class _Inside:
    """What must come back after every block: to switch again, inside a block, costs little.

    Attributes:
        modules: all modules.
        buffers: the modules that have buffers, and these by name.
        contents: the buffers by kind.
    """

    modules: list[nn.Module]
    buffers: list[tuple[nn.Module, dict[str, Tensor | None]]]
    contents: list[list[Tensor]]


# Modules that are in evaluation mode.
_evaluating: WeakKeyDictionary[nn.Module, _Inside] = WeakKeyDictionary()


@contextmanager
def _keeping_values(module: nn.Module) -> Iterator[None]:
    """Evaluation mode; buffers and the random state come back after this block."""
    inside = _evaluating[module]
    contents = inside.contents
    if any(part.training for part in inside.modules):
        module.eval()
    saved = [_flat(same) for same in contents]
    random_state = torch.get_rng_state()
    cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        for owner, registered in inside.buffers:
            owner._buffers.update(registered)
        for same, values in zip(contents, saved, strict=True):
            _undo(same, values)
        torch.set_rng_state(random_state)
        if cuda_states:
            torch.cuda.set_rng_state_all(cuda_states)


def _by_kind(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Group tensors by device and dtype: each group is copied or compared at once."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    return list(kinds.values())


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


@torch.no_grad()
def _undo(buffers: list[Tensor], saved: Tensor) -> None:
    """Bring buffers back to their saved values."""
    # Only buffers that changed: autograd counts any write as a change, which would invalidate the
    # graph that a Hessian keeps.
    if torch.equal(_flat(buffers), saved):
        return
    for buffer, values in zip(buffers, saved.split([buffer.numel() for buffer in buffers]), strict=True):
        if not torch.equal(buffer.reshape(-1), values):
            buffer.copy_(values.view_as(buffer))


def as_classifier(model: nn.Module | Classifier) -> Classifier:
    """Wrap a bare module in a `Classifier`; a `Classifier` stays as it is."""
    if isinstance(model, type):
        raise InputError(f"model: got the class {model.__name__}; give a trained instance of it")
    classifier = model if isinstance(model, Classifier) else Classifier(model)
    if not isinstance(classifier.module, nn.Module):
        raise InputError(f"model: got {type(classifier.module).__name__}; give an nn.Module or a Classifier of one")
    if next(classifier.module.parameters(), None) is None:
        raise InputError(f"model: {type(classifier.module).__name__} has no parameters; give a trained network")
    return classifier
