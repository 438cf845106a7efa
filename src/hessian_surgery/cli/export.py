"""`hessian-surgery export`: the patched model of a run as one file for serving."""

from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from hessian_surgery.cli.inputs import OpenedModel, open_model
from hessian_surgery.cli.options import InputOptions
from hessian_surgery.cli.output import notes, print_json, print_notes, results
from hessian_surgery.cli.run_options import ExportOptions
from hessian_surgery.data.sources import HUGGING_FACE
from hessian_surgery.errors import InputError, calling_it
from hessian_surgery.operation.outcome import read_result
from hessian_surgery.operation.progress import ShownProgress
from hessian_surgery.report.provenance import ran_as_command
from hessian_surgery.serve.export import ONNX, check_file, check_onnx
from hessian_surgery.serve.export import export as export_model
from hessian_surgery.serve.onnx_bias import biases_of_run, patch_onnx, patched_file
from hessian_surgery.serve.onnx_runtime import require_onnx
from hessian_surgery.stored import read_json
from hessian_surgery.weights.checkpoint import load_weights, read_checkpoint


def export(options: ExportOptions) -> None:
    """Write the patched model as one file; compare its answers with the model's."""
    out = check_file(options.out)
    if out.suffix == ONNX:
        require_onnx("out")
    if options.base is not None:
        if out.suffix != ONNX:
            raise InputError(f"base: it changes an ONNX file, but out is {out.name}; give a name that ends in .onnx")
        biases_of_run(options.run)
    opened = open_run(options.run)
    # In folds, all labelled images are calibration images.
    data = opened.parts.heldout if len(opened.parts.heldout) else opened.parts.calibration
    remarks = []
    with ShownProgress(notes()) as observer:
        if options.base is None:
            found = export_model(opened.model, out, data, observer=observer)
        else:
            with calling_it("base", "file"):
                name = patch_onnx(options.base, options.run, out)
                found = check_onnx(out, opened.model, data, observer=observer)
            remarks.append(f"changed {name!r} in {options.base}, and nothing else")
    if options.as_json:
        print_json(asdict(found) | {"file": str(out)})
    else:
        results().print(str(found), highlight=False, markup=False, soft_wrap=True)
    print_notes(remarks)


def open_run(run: Path) -> OpenedModel:
    """Open the model and the data of a finished run, with the patched weights in place."""
    read_result(run)
    inputs = read_json(run / "config.json", "run").get("inputs", {})
    if not ran_as_command(inputs):
        raise InputError(f"run: {run} was made from Python; call hs.export there, where its model is")
    options = _options(inputs)
    place = patched_file(run)
    if place.is_dir():
        options = replace(options, model=f"{HUGGING_FACE}:{place}")
    needs = ("training", "calibration") if "folds" in inputs else ("training", "calibration", "heldout")
    opened = open_model(options, needs, halve="folds" not in inputs)
    if not place.is_dir():
        load_weights(opened.model, read_checkpoint(place))
    return opened


def _options(inputs: dict[str, Any]) -> InputOptions:
    """The options of a run's model and data, from what `config.json` keeps of them; on the CPU."""
    kinds = get_type_hints(InputOptions)
    given: dict[str, Any] = {}
    for own in fields(InputOptions):
        if own.name in inputs:
            text = inputs[own.name]
            if kinds[own.name] in (int, int | None):
                text = int(text)
            given[own.name] = Path(text) if kinds[own.name] == Path | None else text
    return InputOptions(**given | {"device": "cpu"})
