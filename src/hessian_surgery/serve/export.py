"""export: a classifier as a torch.export or an ONNX file that gives its answers."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from hessian_surgery.data.labelled import Data, LabelledSet, as_part
from hessian_surgery.errors import InputError
from hessian_surgery.files import written_beside
from hessian_surgery.model.classifier import Classifier, as_classifier, call_module
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.serve.agreement import Agreement, compare_logits
from hessian_surgery.serve.onnx_runtime import onnx_logits, require_onnx
from hessian_surgery.serve.trace import on_cpu, quiet, trace

PROGRAM, ONNX = ".pt2", ".onnx"
# The most bytes that a file of protocol buffers can hold.
LARGEST = 2**31 - 2**20
BATCH = 256


def export(model: nn.Module | Classifier, file: str | Path, heldout_data: Data) -> Agreement:
    """Write a model as one file for serving, and compare its answers with the model's.

    Batches may have any size. An ONNX file has the inputs `input` (a tensor), `input_0`, … (a
    tuple) or the dict's own names, and the output `logits`; it answers through ONNX Runtime here.

    Args:
        model: the patched classifier; it does not change.
        file: `.pt2` for `torch.export`, `.onnx` for ONNX; it must not exist.
        heldout_data: samples that both answer.

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
    program = trace(classifier, heldout)
    with written_beside(file) as beside:
        _write(program, file.suffix, beside)
        logits = onnx_logits(beside, heldout) if file.suffix == ONNX else _program_logits(beside, heldout)
        return compare_logits(file, logits, compute_logits(classifier, heldout, BATCH), heldout.noun)


def check_onnx(file: str | Path, model: nn.Module | Classifier, heldout_data: Data) -> Agreement:
    """Compare the answers of an ONNX file, by ONNX Runtime, with a model's.

    Args:
        file: with the inputs that `export` writes, and logits as its first output.
        model: the classifier.
        heldout_data: samples that both answer.

    Example:
        >>> _ = hs.export(model, "model.onnx", heldout)
        >>> print(hs.check_onnx("model.onnx", model, heldout))
        model.onnx gives the model's answer on all 600 samples
    """
    heldout = as_part(heldout_data, "heldout_data")
    logits = onnx_logits(Path(file), heldout)
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
        made.save(str(path), external_data=False)


def _program_logits(path: Path, data: LabelledSet) -> Tensor:
    """The logits (N, C) of a file that `export` has just written."""
    with quiet(), torch.no_grad(), path.open("rb") as file:
        module = torch.export.load(file).module()
        shown = data.batches(BATCH, torch.device("cpu"))
        return torch.cat([call_module(module, inputs).float() for inputs, _ in shown])
