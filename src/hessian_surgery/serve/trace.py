"""Trace a classifier with torch.export: batches of any size, inputs by name."""

import copy
import inspect
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from hessian_surgery.data.batches import Inputs
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.errors import InputError
from hessian_surgery.model.classifier import Classifier

# Samples that are traced with. One would be taken for a constant.
TRACED = 2


def on_cpu(classifier: Classifier) -> Classifier:
    """A copy of a classifier on the CPU, in evaluation mode, whose inputs stay as they come."""
    module = copy.deepcopy(classifier.module).cpu().eval()
    return replace(classifier, module=module, channels_last=False)


def named_inputs(inputs: Inputs) -> dict[str, Tensor]:
    """The tensors of a batch, by the name that they have as an input of an exported file."""
    if isinstance(inputs, Tensor):
        return {"input": inputs}
    named = inputs if isinstance(inputs, dict) else {f"input_{i}": value for i, value in enumerate(inputs)}
    for name, value in named.items():
        if not isinstance(value, Tensor):
            raise InputError(f"heldout_data: its input {name!r} is a {type(value).__name__}; give tensors to export")
    return named  # type: ignore[return-value]


class _Served(nn.Module):
    """A classifier as a module from named tensors to logits (n, C)."""

    def __init__(self, classifier: Classifier, inputs: Inputs) -> None:
        super().__init__()
        self.module = classifier.module
        names = list(named_inputs(inputs))

        def forward(*given: Tensor, **by_name: Tensor) -> Tensor:
            named: Any = dict(zip(names, given, strict=False)) | by_name
            if isinstance(inputs, Tensor):
                return classifier.logits(named["input"])
            return classifier.logits(named if isinstance(inputs, dict) else tuple(named[name] for name in names))

        # torch.export takes the names of the inputs from the signature.
        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        self.forward = forward


def trace(classifier: Classifier, data: LabelledSet) -> ExportedProgram:
    """Trace a classifier on the CPU.

    Args:
        classifier: `on_cpu` made it.
        data: whose first samples it is traced with. The size of a batch stays free; that of whole
            numbers, such as tokens, in the second direction too.
    """
    inputs, _ = next(data.batches(TRACED, classifier.device))
    named = named_inputs(inputs)
    free: dict[str, Any] = {
        name: dict.fromkeys(range(1 if tensor.is_floating_point() else min(2, tensor.ndim)), Dim.AUTO)
        for name, tensor in named.items()
    }
    # The program is called as the model is: by names if the data is a dict.
    args, kwargs = ((), named) if isinstance(inputs, dict) else (tuple(named.values()), {})
    with quiet(), torch.no_grad():
        try:
            return torch.export.export(_Served(classifier, inputs).eval(), args, kwargs, dynamic_shapes=free)
        except Exception as error:  # a trace can fail in any way
            raise InputError(f"model: torch.export cannot trace it: {_first_line(error)}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep back the warnings that torch's exporters give and log about themselves."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
