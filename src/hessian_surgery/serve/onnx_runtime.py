"""ONNX Runtime: the logits that an ONNX file gives."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.errors import InputError
from hessian_surgery.serve.agreement import told_batches
from hessian_surgery.serve.trace import named_inputs
from hessian_surgery.types import Progress

PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def require_onnx(argument: str) -> None:
    """Raise an InputError if a package is missing that ONNX files need."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise InputError(
            f"{argument}: ONNX needs {', '.join(missing)}, not installed here; pip install 'hessian-surgery[export]'"
        )


def onnx_logits(file: Path, data: LabelledSet, progress: Progress) -> Tensor:
    """Compute an ONNX file's logits (N, C) on the CPU, in the set's order."""
    session = _session(file)
    wanted = [given.name for given in session.get_inputs()]
    found = []
    for inputs in told_batches(data, progress):
        named = named_inputs(inputs)
        if len(named) == 1 and len(wanted) == 1:
            named = {wanted[0]: next(iter(named.values()))}
        missing = next((name for name in wanted if name not in named), None)
        if missing is not None:
            raise InputError(f"file: {file} takes {missing!r}, and the data has {', '.join(named)}; give its own data")
        try:
            logits = session.run(None, {name: named[name].numpy() for name in wanted})[0]
        except Exception as error:  # the runtime has exceptions of its own
            raise InputError(f"file: {file} does not take these inputs: {str(error).partition(chr(10))[0]}") from error
        found.append(torch.from_numpy(logits).float())
    return torch.cat(found)


def _session(file: Path) -> Any:
    require_onnx("file")
    import onnxruntime

    if not file.is_file():
        raise InputError(f"file: {file} is not a file; give an ONNX file")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime has exceptions of its own
        reason = str(error).partition("\n")[0]
        raise InputError(f"file: {file} cannot be read by ONNX Runtime: {reason}") from error
