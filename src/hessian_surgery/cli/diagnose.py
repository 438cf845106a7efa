"""`hessian-surgery diagnose`: show whether there is anything to gain."""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import fields, replace
from typing import Any

from hessian_surgery.cli.configs import choose_config, refuse_unused
from hessian_surgery.cli.diagnose_options import DiagnoseOptions
from hessian_surgery.cli.folders import Output, make_folder, writing
from hessian_surgery.cli.inputs import OpenedModel, open_model, recorded_options
from hessian_surgery.cli.operate import show_cost
from hessian_surgery.cli.output import notes, print_json, print_notes, results
from hessian_surgery.cli.tables import print_diagnosis
from hessian_surgery.curvature.search import SpikeSearch
from hessian_surgery.errors import InputError
from hessian_surgery.files import write_json, write_text
from hessian_surgery.operation.config import OperationConfig, SurgeryConfig
from hessian_surgery.operation.environment import environment
from hessian_surgery.operation.progress import ShownProgress
from hessian_surgery.paper.diagnosis import Diagnosis, Spikes, probing_config
from hessian_surgery.paper.diagnosis import diagnose as diagnose_model
from hessian_surgery.parse_numbers import parse_whole_numbers
from hessian_surgery.report.diagnosis_page import diagnosis_page
from hessian_surgery.report.figure_files import diagnosis_figures, save_figures
from hessian_surgery.report.write_report import PAGE
from hessian_surgery.version import SCHEMA_VERSION

OUTPUT = Output("diagnosis", (PAGE, "diagnosis.json"))


def diagnose(options: DiagnoseOptions) -> None:
    """Show whether there is anything to gain by operating; the model does not change."""
    spikes = read_spikes(options)
    config = choose_goal(options, spikes)
    out = options.out
    if out is not None:
        OUTPUT.check(out)
    opened = open_model(options, ("training", "calibration"))
    if options.dry_run:
        assert spikes is not None  # `read_spikes` has seen to it
        show_cost(opened, replace(probing_config(config, spikes), iterations=1), options.as_json)
        return
    make_folder(options.figures, "figures")
    started = time.perf_counter()
    with writing(out, OUTPUT) if out else nullcontext():
        found = run_diagnosis(opened, config, spikes, options.epsilon)
        content = diagnosis_dict(found, opened, config, recorded_options(options))
        content["seconds"] = time.perf_counter() - started
        if out is not None:
            write_text(out / PAGE, diagnosis_page(content))
            write_json(out / OUTPUT.names[-1], content)
    if options.as_json:
        print_json(content)
    else:
        print_diagnosis(results(), found)
    if options.figures:
        save_figures(options.figures, diagnosis_figures(content))
    if out is not None:
        print_notes([f"report: {out / PAGE}"])


def read_spikes(options: DiagnoseOptions) -> Spikes | None:
    """Read how many spikes are asked for; refuse options about spikes if none are.

    Raises:
        InputError: the number cannot be read, or an option has no use.
    """
    text = options.spikes
    if text == "auto":
        return "auto"
    if text is not None:
        numbers = parse_whole_numbers("spikes", text)
        if len(numbers) > 1:
            raise InputError(f"spikes: got {text!r}; give one number, or auto")
        return numbers[0]
    about_spikes = ("preset", "sensitivity", "epsilon", "dry_run", *(own.name for own in fields(SpikeSearch)))
    for name in about_spikes:
        value = getattr(options, name, None)
        if value not in (None, False, "default"):
            raise InputError(f"{name}: got {value}, but no spikes are sought; give --spikes auto, or leave it out")
    return None


def choose_goal(options: DiagnoseOptions, spikes: Spikes | None) -> OperationConfig:
    """Make the config, whose number of spikes plays no part; refuse options that it cannot use."""
    options = replace(options, spikes=None)
    config = choose_config(options)
    if spikes is not None:
        refuse_unused(options, replace(config, directions="both") if isinstance(config, SurgeryConfig) else config)
    return config


def run_diagnosis(
    opened: OpenedModel, config: OperationConfig, spikes: Spikes | None, epsilon: float | None
) -> Diagnosis:
    """Diagnose a model, with a progress bar."""
    with ShownProgress(notes(), opened.remarks) as observer:
        return diagnose_model(
            opened.model,
            training_data=opened.parts.training,
            calibration_data=opened.parts.calibration,
            config=config,
            spikes=spikes,
            epsilon=epsilon,
            observer=observer,
        )


def diagnosis_dict(
    found: Diagnosis, opened: OpenedModel, config: OperationConfig, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what `diagnose --json` prints and `diagnosis.json` holds."""
    return {
        "schema_version": SCHEMA_VERSION,
        **found.as_dict(),
        "tolerance": config.search.tolerance,
        "seed": config.seed,
        "inputs": dict(inputs),
        "hashes": {
            f"calibration {found.noun}": found.data["calibration"]["sha256"],
            **opened.hashes,
        },
        "environment": environment(opened.classifier.device),
    }
