"""Operations, diagnoses and costs as commands run and show them."""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from hessian_surgery.cli.inputs import (
    Opened,
    check_empty,
    check_folder,
    choose_config,
    make_folder,
    open_given,
    recorded_options,
    refuse_unused,
)
from hessian_surgery.cli.output import notes, print_json, print_notes
from hessian_surgery.cli.progress import TerminalObserver
from hessian_surgery.cli.tables import describe_choices, print_cost, print_diagnosis, print_findings
from hessian_surgery.files import claimed, write_json, write_text
from hessian_surgery.operation.acceptance import Criteria, read_criteria, unmet
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.operation.cost import estimate_cost
from hessian_surgery.operation.operate import environment, operate
from hessian_surgery.operation.outcome import Outcome
from hessian_surgery.paper.diagnosis import Diagnosis, diagnose
from hessian_surgery.report.diagnosis_page import diagnosis_page
from hessian_surgery.report.figure_files import diagnosis_figures, run_figures, save_figures
from hessian_surgery.report.run import load_run, run_of
from hessian_surgery.report.run_page import run_page
from hessian_surgery.report.write_report import PAGE

# How `operate` exits where the run is written and a criterion of --accept is not met.
NOT_ACCEPTED = 3


def operate_given(given: dict[str, Any]) -> None:
    """Operate as a command's options ask; exits with 3 where the criteria are not met."""
    config, out, resume = choose_config(given), given["out"], given["resume"]
    refuse_unused(given, config)
    criteria = read_criteria(given["accept"]) if given["accept"] else None
    if not given["dry_run"]:
        check_folder(out, resume)
    opened = open_given(given)
    if criteria is not None:
        criteria.check_names(opened.parts.heldout.classes)
    if given["dry_run"]:
        show_cost(opened, config, given["as_json"])
        return
    make_folder(given["figures"], "figures")
    with claimed(out):
        check_folder(out, resume)
        outcome = operate_on(opened, config, out, recorded_options(given), resume, criteria)
    show_outcome(outcome, out, given["as_json"])
    if given["figures"]:
        save_figures(given["figures"], run_figures(load_run(out)))
    if outcome.acceptance and outcome.acceptance["failed"]:
        print_notes(f"not accepted: {line}" for line in outcome.acceptance["failed"])
        raise typer.Exit(NOT_ACCEPTED)


def operate_on(
    opened: Opened,
    config: SurgeryConfig,
    folder: Path,
    inputs: Mapping[str, Any],
    resume: bool = False,
    criteria: Criteria | None = None,
) -> Outcome:
    """Operate with a bar and a line per iteration, and write the run folder with its page."""
    checkpoint, parts = opened.checkpoint, opened.parts
    sizes = f"deciding on {len(parts.calibration)} calibration images, reporting on {len(parts.heldout)} held-out ones"
    try:
        with TerminalObserver(notes(), config.rounds, (*opened.remarks, sizes)) as terminal:
            outcome = operate(
                opened.model,
                training_data=parts.training,
                calibration_data=parts.calibration,
                heldout_data=parts.heldout,
                config=config,
                stored_as=checkpoint.dtypes if checkpoint else None,
                folder=folder,
                resume=resume,
                observer=terminal,
            )
    except KeyboardInterrupt:
        notes().print(
            "interrupted; the same command with --resume goes on from the last finished iteration", soft_wrap=True
        )
        raise
    if criteria is not None:
        failed = unmet(criteria, outcome.findings.heldout)
        outcome = replace(outcome, acceptance={"criteria": asdict(criteria), "failed": failed})
    write_text(folder / PAGE, run_page(run_of(outcome, outcome.patch(checkpoint), inputs)))
    outcome.save(folder, checkpoint, inputs)
    return outcome


def show_outcome(outcome: Outcome, folder: Path, as_json: bool) -> None:
    """What an operation came to, and where it is written."""
    if as_json:
        print_json(outcome.as_dict())
    else:
        print_findings(Console(), outcome.findings)
        notes().print(describe_choices(outcome.choices), highlight=False)
    print_notes([f"run folder: {folder}", f"report: {folder / PAGE}"])


def diagnose_given(given: dict[str, Any]) -> None:
    """Diagnose as a command's options ask."""
    config, out = replace(choose_config(given).as_loop(), iterations=1), given["out"]
    if out is not None:
        check_empty(out)
    opened = open_given(given, ("training", "calibration"))
    if given["dry_run"]:
        show_cost(opened, config, given["as_json"])
        return
    make_folder(given["figures"], "figures")
    started = time.perf_counter()
    with claimed(out) if out else nullcontext():
        found = run_diagnosis(opened, config, given["epsilon"])
        seconds = time.perf_counter() - started
        content = diagnosis_dict(found, opened, config, recorded_options(given)) | {"seconds": seconds}
        if out is not None:
            write_text(out / PAGE, diagnosis_page(content))
            write_json(out / "diagnosis.json", content)
    if given["as_json"]:
        print_json(content)
    else:
        print_diagnosis(Console(), found)
    if given["figures"]:
        save_figures(given["figures"], diagnosis_figures(content))
    if out is not None:
        print_notes([f"report: {out / PAGE}"])


def run_diagnosis(opened: Opened, config: SurgeryConfig, epsilon: float | None) -> Diagnosis:
    """Diagnose with a bar."""
    with TerminalObserver(notes(), 1, opened.remarks) as observer:
        return diagnose(
            opened.model,
            training_data=opened.parts.training,
            calibration_data=opened.parts.calibration,
            config=config,
            epsilon=epsilon,
            observer=observer,
        )


def diagnosis_dict(
    found: Diagnosis, opened: Opened, config: SurgeryConfig, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """What `diagnose --json` prints and `diagnosis.json` holds."""
    return {
        **found.as_dict(),
        "tolerance": config.tolerance,
        "seed": config.seed,
        "inputs": dict(inputs),
        "hashes": opened.hashes,
        "environment": environment(opened.classifier.device),
    }


def show_cost(opened: Opened, config: SurgeryConfig, as_json: bool) -> None:
    """What an operation would cost."""
    cost = estimate_cost(opened.classifier, opened.parts.training, opened.parts.calibration, config)
    if as_json:
        print_json(cost.as_dict())
    else:
        print_cost(Console(), cost)
        print_notes(opened.remarks)
