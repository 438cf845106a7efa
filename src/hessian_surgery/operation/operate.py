"""operate: the whole operation on a model, measured before and after on held-out images."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hessian_surgery.data.checks import refuse_overlap, require_images
from hessian_surgery.data.labelled import Data, LabelledSet, as_labelled
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.evidence.effective_rank import analyse
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import Answers, answer
from hessian_surgery.operation.algorithms import algorithm_of
from hessian_surgery.operation.config import OperationConfig, SurgeryConfig
from hessian_surgery.operation.driver import Ending, run_in_folder
from hessian_surgery.operation.environment import environment
from hessian_surgery.operation.front import describe_front
from hessian_surgery.operation.iteration_record import IterationRecord
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.outcome import Findings, Outcome, make_findings
from hessian_surgery.operation.problem import Problem, prepare
from hessian_surgery.operation.warnings import find_warnings
from hessian_surgery.weights.checkpoint import stored_state


def operate(
    model: nn.Module | Classifier,
    *,
    training_data: Data,
    calibration_data: Data,
    heldout_data: Data,
    config: OperationConfig | None = None,
    stored_as: Mapping[str, torch.dtype] | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    observer: Observer | None = None,
) -> Outcome:
    """Operate on a model in place.

    The patched weights stay in the module; everything else about it is left as it was. If anything
    goes wrong, the starting weights are restored.

    Args:
        model: the trained classifier, a module or a `Classifier`.
        training_data: images that the model was trained on; the directions come from these.
        calibration_data: images that every decision is made on.
        heldout_data: images that only the report sees.
        config: the settings; `SurgeryConfig()` by default, or a `LoopConfig` for the paper's loop.
        stored_as: dtypes, by tensor name, in the file that the model will be saved to; by default
            the module's. The patched weights are rounded to these before they are measured.
        folder: gets history and state after each iteration, so that a killed run can be resumed.
        resume: continue from the state in `folder`, if there is one.
        observer: is told about progress.
    """
    started = time.perf_counter()
    config = config or SurgeryConfig()
    problem, before = prepare(model, training_data, calibration_data, config)
    heldout = _heldout(problem, heldout_data)
    heldout_before = answer(problem.classifier, heldout, config.batch_size)
    base_weights = stored_state(problem.classifier.module, stored_as)
    start = problem.space.snapshot()
    try:
        place = Path(folder) if folder else None
        records, ending = run_in_folder(algorithm_of(config), problem, place, resume, observer or Observer())
        problem.space.round_to(stored_as or {})
        calibration = _compare(problem, problem.calibration_data, before)
        held = _compare(problem, heldout, heldout_before)
        warnings = find_warnings(problem, heldout, records, ending.accuracy, calibration)
        asked = algorithm_of(config).asked(problem)
        findings = make_findings(calibration, held, asked, warnings, config.seed)
        weights = (base_weights, stored_state(problem.classifier.module, stored_as))
        return _outcome(problem, findings, records, ending, weights, time.perf_counter() - started)
    except BaseException:
        problem.space.restore(start)
        raise


def _outcome(
    problem: Problem[Any],
    findings: Findings,
    records: list[IterationRecord],
    ending: Ending,
    weights: tuple[dict[str, Tensor], dict[str, Tensor]],
    seconds: float,
) -> Outcome:
    """The outcome, from what was found; `weights` are those before and after."""
    classes = findings.heldout.classes
    return Outcome(
        config=problem.config,
        findings=findings,
        iterations=tuple(records),
        front=_front(ending, findings),
        structure=analyse(np.array(records[0].responses.values), classes),
        choices=algorithm_of(problem.config).choices(problem),
        split=_split(problem, len(findings.heldout.labels)),
        seconds=seconds,
        environment=environment(problem.classifier.device),
        base_weights=weights[0],
        weights=weights[1],
    )


def _heldout(problem: Problem[Any], data: Data) -> LabelledSet:
    """The held-out images, checked against the calibration images."""
    heldout = as_labelled(data)
    require_images(heldout.labels, heldout.classes, "heldout_data")
    heldout = heldout.resident(problem.classifier.device)
    if heldout.classes != problem.calibration_data.classes:
        raise InputError("heldout_data: its classes are not those of calibration_data")
    refuse_overlap(problem.calibration_data, heldout, "heldout_data")
    return heldout


def _compare(problem: Problem[Any], data: LabelledSet, before: Answers) -> BeforeAfter:
    after = answer(problem.classifier, data, problem.config.batch_size)
    return BeforeAfter(data.classes, data.index, data.labels, before, after)


def _front(ending: Ending, findings: Findings) -> dict[str, Any] | None:
    """The front, with bands for the held-out images."""
    if ending.front is None:
        return None
    calibration = findings.calibration.metrics()[0]
    held = findings.heldout.metrics()[0]
    return describe_front(
        ending.front,
        np.array(calibration.per_class),
        np.array(calibration.count, dtype=np.float64),
        np.array(held.count, dtype=np.float64),
    )


def _split(problem: Problem[Any], heldout: int) -> dict[str, int]:
    finder = problem.finder
    drawn = problem.gradient_data
    hessian = 0 if finder is None else min(finder.search.hessian_samples, len(finder.data))
    return {
        "seed": problem.config.seed,
        "calibration": len(problem.calibration_data),
        "heldout": heldout,
        "hessian": hessian,
        "gradients": 0 if drawn is None else len(drawn),
    }
