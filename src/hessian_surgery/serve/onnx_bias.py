"""A patch of biases alone as one change to an ONNX file that is there already."""

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hessian_surgery.errors import InputError
from hessian_surgery.files import written_beside
from hessian_surgery.serve.onnx_runtime import require_onnx
from hessian_surgery.weights.checkpoint import read_checkpoint
from hessian_surgery.weights.patch import load_patch


def patch_onnx(file: str | Path, run: str | Path, out: str | Path) -> str:
    """Put a run's biases into an ONNX file of the starting model; nothing else in it changes.

    The initializer is found by its values, so it does not matter which program wrote the file.

    Args:
        file: the starting model.
        run: folder of a finished run that moved nothing but one tensor of biases, as with
            `directions="biases"` or `--quick`.
        out: the file to write; it must not exist.

    Returns:
        The name of the initializer that changed.

    Example:
        >>> _ = hs.export(model, "old.onnx", heldout)
        >>> parts = {"training_data": train, "calibration_data": calibration}
        >>> biases = hs.SurgeryConfig(directions="biases")
        >>> hs.operate(model, **parts, heldout_data=heldout, config=biases).save("run")
        >>> hs.patch_onnx("old.onnx", "run", "new.onnx")
        'module.2.bias'
        >>> hs.check_onnx("new.onnx", model, heldout).differing
        0
    """
    require_onnx("file")
    from onnx import numpy_helper

    file, out = Path(file), Path(out)
    before, after = biases_of_run(Path(run))
    if out.exists():
        raise InputError(f"out: {out} exists; give another name")
    content = _read(file)
    found = _initializer(content, before, file)
    _refuse_far(content, file, out)
    changed = numpy_helper.to_array(found).copy()
    changed.reshape(-1)[:] = after.double().numpy()
    found.CopyFrom(numpy_helper.from_array(changed, found.name))
    with written_beside(out) as beside:
        beside.write_bytes(content.SerializeToString())
    return str(found.name)


def biases_of_run(run: Path) -> tuple[Tensor, Tensor]:
    """The biases (C,) before and after a run that changed nothing else, as it stores them."""
    patch = load_patch(run / "patch.safetensors")
    names = list(patch.bits)
    if not names:
        raise InputError(f"run: {run} changed no weight; the file that you serve is right as it is")
    if len(names) > 1 or patch.bits[names[0]].ndim != 1:
        some = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        raise InputError(f"run: {run} changed {some}, not biases alone; export the whole model instead")
    weights = read_checkpoint(patched_file(run)).weights
    return patch.revert(weights)[names[0]], weights[names[0]]


def patched_file(run: Path) -> Path:
    """The patched weights of a run: a file, or a Hugging Face model's folder."""
    return run / "model" if (run / "model").is_dir() else run / "model.safetensors"


def _read(file: Path) -> Any:
    import onnx

    try:
        return onnx.load(str(file), load_external_data=False)
    except Exception as error:  # a damaged file can raise anything
        reason = str(error).partition("\n")[0]
        raise InputError(f"file: {file} cannot be read as an ONNX file: {reason}") from error


def _initializer(content: Any, before: Tensor, file: Path) -> Any:
    """The one initializer that holds these biases, rounded to its own dtype."""
    from onnx import numpy_helper

    wanted = before.double().numpy()
    found = []
    for initializer in content.graph.initializer:
        if int(np.prod(initializer.dims)) == wanted.size and not initializer.external_data:
            values = numpy_helper.to_array(initializer)
            if values.dtype.kind == "f" and values.tobytes() == wanted.astype(values.dtype).tobytes():
                found.append(initializer)
    if len(found) != 1:
        many = "no initializer" if not found else f"{len(found)} initializers"
        raise InputError(
            f"file: {file} has {many} with the biases that the run started from; export the patched model instead"
        )
    return found[0]


def _refuse_far(content: Any, file: Path, out: Path) -> None:
    """Refuse another folder for a file whose large tensors are in a file beside it."""
    beside = any(initializer.external_data for initializer in content.graph.initializer)
    if beside and out.resolve().parent != file.resolve().parent:
        raise InputError(f"out: some weights of {file} are in a file beside it; give a name in the same folder")
