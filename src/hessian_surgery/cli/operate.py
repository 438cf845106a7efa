"""`hessian-surgery operate`: operate on a trained classifier."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hessian_surgery.cli.configs import choose_config, refuse_unused
from hessian_surgery.cli.folders import OPERATION, check_run_folder, make_folder, marked
from hessian_surgery.cli.inputs import OpenedModel, open_model, recorded_options, with_trained_loss
from hessian_surgery.cli.operate_options import OperateOptions
from hessian_surgery.cli.option_names import as_options
from hessian_surgery.cli.output import notes, print_json, print_notes, results
from hessian_surgery.cli.tables import describe_choices, print_cost, print_findings
from hessian_surgery.data.sources import calibrates_on_training
from hessian_surgery.errors import InputError
from hessian_surgery.files import claimed, write_text
from hessian_surgery.model.evaluation import check_classifier
from hessian_surgery.operation.acceptance_criteria import Criteria, read_criteria
from hessian_surgery.operation.config import OperationConfig
from hessian_surgery.operation.cost import check_memory, estimate_cost, try_operation
from hessian_surgery.operation.criteria_goal import config_to_count
from hessian_surgery.operation.folds import check_folds
from hessian_surgery.operation.operate import operate as operate_on_model
from hessian_surgery.operation.outcome import Outcome, read_result
from hessian_surgery.operation.progress import LONG, ShownProgress
from hessian_surgery.ranks import alone, present
from hessian_surgery.report.figure_files import run_figures, save_figures
from hessian_surgery.report.run import load_run, run_of
from hessian_surgery.report.run_page import run_page
from hessian_surgery.report.write_report import PAGE

# The exit code if the run is written but a criterion of --accept is not met.
NOT_ACCEPTED = 3

# What is said of an operation that takes long.
QUICKER = "for a first look in a fraction of that time, give --quick: it moves biases alone"


def operate(options: OperateOptions) -> int:
    """Operate on a classifier; write the patched model, the patch and the evidence.

    Returns:
        The exit code.
    """
    config = _choose(options)
    criteria = read_criteria(options.accept) if options.accept else None
    if not options.dry_run:
        check_run_folder(options.out, options.resume)
    opened = _open(options)
    config = with_trained_loss(config, options.loss, opened)
    config.check_classes(opened.parts.calibration.classes)
    if criteria is not None:
        criteria.check_names(opened.parts.heldout.classes)
    if options.dry_run:
        counted, quicker = config_to_count(config, criteria), "" if options.quick else QUICKER
        show_cost(opened, counted, options.as_json, options.folds, not options.quick, quicker)
        return 0
    make_folder(options.figures, "figures")
    with claimed(options.out, partial(check_run_folder, options.out, options.resume)), marked(options.out, OPERATION):
        inputs = recorded_options(options)
        outcome = operate_on(
            opened, config, options.out, inputs, options.resume, criteria, options.folds, front=not options.quick
        )
    if present().writes:
        show_outcome(outcome, options.out, options.as_json)
    if present().writes and options.figures:
        with alone():
            save_figures(options.figures, run_figures(load_run(options.out)))
    if outcome.accepted is False:
        print_notes(f"not accepted: {one.failure}{one.remedy}" for one in outcome.findings.criteria if not one.met)
        return NOT_ACCEPTED
    return 0


def _choose(options: OperateOptions) -> OperationConfig:
    """Return the configuration, with biases alone for a quick look."""
    if options.quick:
        for name, value, usual in (("directions", options.directions, None), ("preset", options.preset, "default")):
            if value != usual:
                raise InputError(f"quick: it moves biases alone, but {name} is {value!r}; give one of the two")
        options = replace(options, directions="biases")
    config = choose_config(options)
    refuse_unused(options, config)
    on_training = calibrates_on_training(options.data, options.training_data, options.calibration_data)
    return replace(config, calibrate_on_training=on_training)


def _open(options: OperateOptions) -> OpenedModel:
    """Open model and data: with folds no held-out data, and all labelled images to decide on."""
    if options.folds is None:
        return open_model(options)
    if options.heldout_data is not None:
        raise InputError(f"folds: got {options.folds}, and --heldout-data as well; give one of the two")
    opened = open_model(options, ("training", "calibration"), halve=False)
    check_folds(opened.parts.calibration, options.folds)
    return opened


def operate_on(
    opened: OpenedModel,
    config: OperationConfig,
    folder: Path,
    inputs: Mapping[str, Any],
    resume: bool = False,
    criteria: Criteria | None = None,
    folds: int | None = None,
    front: bool = True,
) -> Outcome:
    """Operate, show the progress, and write the run folder with its page."""
    checkpoint = opened.checkpoint
    parts = opened.parts
    labelled = len(parts.calibration)
    noun = parts.calibration.noun
    sizes = f"deciding on {labelled} calibration {noun}, reporting on {len(parts.heldout)} held-out ones"
    if folds is not None:
        sizes = f"operating on {labelled} {noun}, without each of {folds} folds in turn, which judges"
    quick = () if front else ("a first look: biases alone are moved; without --quick other weights are tried too",)
    try:
        with ShownProgress(notes(), (*opened.remarks, sizes, *quick), if_long=QUICKER if front else "") as terminal:
            outcome = operate_on_model(
                opened.model,
                training_data=parts.training,
                calibration_data=parts.calibration,
                heldout_data=parts.heldout if folds is None else None,
                folds=folds,
                config=config,
                accept=criteria,
                stored_as=checkpoint.dtypes if checkpoint else None,
                folder=folder,
                resume=resume,
                front=front,
                observer=terminal,
            )
    except KeyboardInterrupt as stop:
        kept = next(folder.rglob("history.jsonl"), None) is not None
        stop.args = (f"interrupted; give the same command {'with --resume to continue' if kept else 'again'}",)
        raise
    outcome = _with_options(outcome)
    patch = outcome.patch(checkpoint)
    outcome = outcome.with_patch(patch)
    write_text(folder / PAGE, run_page(run_of(outcome, patch, inputs)))
    outcome.save(folder, checkpoint, inputs, patch)
    return outcome


def _with_options(outcome: Outcome) -> Outcome:
    """The same outcome; the advice on criteria that are not met names options."""
    if outcome.acceptance is None:
        return outcome
    criteria = tuple(
        replace(one, advice=None if one.advice is None else as_options(one.advice)) for one in outcome.findings.criteria
    )
    acceptance = outcome.acceptance | {"checked": [one.as_dict() for one in criteria]}
    return replace(outcome, findings=replace(outcome.findings, criteria=criteria), acceptance=acceptance)


def show_outcome(outcome: Outcome, folder: Path, as_json: bool) -> None:
    """Show what an operation found, and where it was written."""
    if as_json:
        print_json(read_result(folder))
    else:
        print_findings(results(), outcome.findings)
        notes().print(describe_choices(outcome.choices, outcome.findings), highlight=False)
        notes().print(outcome.findings.said(outcome.ended), highlight=False, markup=False)
    print_notes([f"run folder: {folder}", f"report: {folder / PAGE}"])


def show_cost(
    opened: OpenedModel,
    config: OperationConfig,
    as_json: bool,
    folds: int | None = None,
    front: bool = True,
    quicker: str = "",
) -> None:
    """Show what an operation would cost, from a short trial of its passes.

    Args:
        opened: model and data.
        config: the settings.
        as_json: whether to print JSON.
        folds: how many, if any.
        front: whether other objectives and budgets are predicted too.
        quicker: what to say if it would take long.

    Raises:
        InputError: it would not fit in memory; the cost is shown all the same.
    """
    parts = opened.parts
    classifier = opened.classifier
    heldout = parts.heldout if folds is None else None
    check_classifier(classifier, parts.calibration)
    with ShownProgress(notes()) as bar:
        trial = try_operation(classifier, parts.calibration, config, partial(bar.stage, "trial"))
    cost = estimate_cost(classifier, parts.training, parts.calibration, config, folds, heldout, trial, front=front)
    if as_json:
        print_json(cost.as_dict())
    else:
        print_cost(results(), cost, parts.calibration.noun)
        print_notes(opened.remarks)
    if quicker and (cost.seconds or 0) > LONG:
        print_notes([quicker])
    check_memory(classifier, parts.training, parts.calibration, heldout, config, trial)
