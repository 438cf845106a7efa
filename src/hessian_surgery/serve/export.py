"""export: a classifier as a torch.export or an ONNX file that gives its answers."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from hessian_surgery.data.labelled import Data, LabelledSet, as_part
from hessian_surgery.errors import InputError
from hessian_surgery.files import written_beside
from hessian_surgery.model.classifier import Classifier, as_classifier, call_module
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.progress import watched
from hessian_surgery.operation.schedule import Expected
from hessian_surgery.serve.agreement import BATCH, Agreement, compare_logits, told_batches
from hessian_surgery.serve.onnx_runtime import onnx_logits, require_onnx
from hessian_surgery.serve.trace import on_cpu, quiet, trace
from hessian_surgery.types import Progress

PROGRAM, ONNX = ".pt2", ".onnx"
# The most bytes that a file of protocol buffers can hold.
LARGEST = 2**31 - 2**20
# The stages that an observer is told of.
EXPORTING, ANSWERING, CHECKING = "exporting", "answers of the model", "checking the file"
# The axes of an input that may be free.
AXES = ("batch", "length")


def export(
    model: nn.Module | Classifier,
    file: str | Path,
    heldout_data: Data,
    *,
    observer: Observer | None = None,
    progress: bool = False,
) -> Agreement:
    """Write a model as one file for serving, and compare its answers with the model's.

    Batches may have any size. An ONNX file has the inputs `input` (a tensor), `input_0`, … (a
    tuple) or the dict's own names, and the output `logits`; it answers through ONNX Runtime here.
    Its free axes are called `batch` and, of texts, `length`.

    Args:
        model: the patched classifier; it does not change.
        file: `.pt2` for `torch.export`, `.onnx` for ONNX; it must not exist.
        heldout_data: samples that both answer.
        observer: told about progress.
        progress: show a bar on stderr, or a line now and then where that is no terminal.

    Example:
        >>> hs.export(model, "model.pt2", heldout).differing
        0
        >>> program = torch.export.load("model.pt2").module()
        >>> torch.allclose(program(heldout.inputs()), model(heldout.inputs()), atol=1e-4)
        True
    """
    file = check_file(file)
    heldout = as_part(heldout_data, "heldout_data")
    classifier = on_cpu(as_classifier(model))
    if file.suffix == ONNX:
        require_onnx("export")
        _refuse_large(classifier.module)
    answer = onnx_logits if file.suffix == ONNX else _program_logits
    with watched(observer, progress) as observer:
        observer.expect(partial(_expected, EXPORTING, ANSWERING, CHECKING), in_seconds=False)
        observer.stage(EXPORTING, 0, 1)
        # Before the file is written: a model that cannot be traced is no failing of the disk.
        program = trace(classifier, heldout)
        with written_beside(file) as beside:
            _write(program, file.suffix, beside)
            observer.stage(ANSWERING, 0, 1)
            reference = compute_logits(classifier, heldout, BATCH)
            logits = answer(beside, heldout, partial(observer.stage, CHECKING))
            return compare_logits(file, logits, reference, heldout.noun)


def check_onnx(
    file: str | Path,
    model: nn.Module | Classifier,
    heldout_data: Data,
    *,
    observer: Observer | None = None,
    progress: bool = False,
) -> Agreement:
    """Compare the answers of an ONNX file, by ONNX Runtime, with a model's.

    Args:
        file: with the inputs that `export` writes, and logits as its first output.
        model: the classifier.
        heldout_data: samples that both answer.
        observer: told about progress.
        progress: show a bar on stderr, or a line now and then where that is no terminal.

    Example:
        >>> _ = hs.export(model, "model.onnx", heldout)
        >>> print(hs.check_onnx("model.onnx", model, heldout))
        model.onnx gives the model's answer on all 600 samples
    """
    heldout = as_part(heldout_data, "heldout_data")
    with watched(observer, progress) as observer:
        observer.expect(partial(_expected, CHECKING, ANSWERING), in_seconds=False)
        logits = onnx_logits(Path(file), heldout, partial(observer.stage, CHECKING))
        observer.stage(ANSWERING, 0, 1)
        reference = compute_logits(on_cpu(as_classifier(model)), heldout, BATCH)
    if logits.shape != reference.shape:
        raise InputError(f"file: {file} gives {tuple(logits.shape)}, the model {tuple(reference.shape)}; give its own")
    return compare_logits(Path(file), logits, reference, heldout.noun)


def check_file(file: str | Path) -> Path:
    """Refuse a file that exists, or whose name does not say its kind."""
    file = Path(file)
    if file.suffix not in (PROGRAM, ONNX):
        raise InputError(f"out: got {file.name!r}; give a name that ends in .onnx, or in .pt2 for torch.export")
    if file.exists():
        raise InputError(f"out: {file} exists; give another name")
    return file


def _expected(*names: str) -> list[Expected]:
    """Stages that take about as long as each other."""
    return [Expected(name, 1.0) for name in names]


def _refuse_large(module: nn.Module) -> None:
    size = sum(tensor.nbytes for tensor in module.state_dict().values())
    if size > LARGEST:
        raise InputError(f"out: an ONNX file holds at most 2 GB, the model has {size / 1e9:.1f}; give a .pt2 file")


def _write(program: ExportedProgram, kind: str, path: Path) -> None:
    with quiet():
        if kind == PROGRAM:
            with path.open("wb") as file:
                torch.export.save(program, file)
            return
        names = [name for name in program.graph_signature.user_inputs if isinstance(name, str)]
        made = torch.onnx.export(
            program, dynamo=True, input_names=names, output_names=["logits"], verbose=False, optimize=True
        )
        assert made is not None
        _name_axes(made)
        made.save(str(path), external_data=False)


def _name_axes(made: Any) -> None:
    """Call the free axes of an ONNX program what they are, not s72; an early torch cannot."""
    names = {
        str(size): name
        for given in made.model.graph.inputs
        for name, size in zip(AXES, given.shape, strict=False)
        if not isinstance(size, int) and size.value is not None
    }
    if hasattr(made, "rename_axes"):
        made.rename_axes(names)


def _program_logits(path: Path, data: LabelledSet, progress: Progress) -> Tensor:
    """The logits (N, C) of a file that `export` has just written."""
    with quiet(), torch.no_grad(), path.open("rb") as file:
        module = torch.export.load(file).module()
        return torch.cat([call_module(module, inputs).float() for inputs in told_batches(data, progress)])
