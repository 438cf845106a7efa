"""operate: the whole operation on a model, measured before and after on held-out images."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hessian_surgery.data.labelled import Data, as_part
from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.evidence.effective_rank import analyse
from hessian_surgery.evidence.metrics import class_accuracy
from hessian_surgery.evidence.simpler import Simpler, make_simpler
from hessian_surgery.model.classifier import Classifier, as_classifier
from hessian_surgery.model.evaluation import Answers, answer, answers_of
from hessian_surgery.model.freed_memory import kept_for_passes
from hessian_surgery.model.parameters import Snapshot
from hessian_surgery.model.passes import Passes
from hessian_surgery.operation.acceptance_criteria import Accept, Criteria, as_criteria
from hessian_surgery.operation.accepted import with_criteria
from hessian_surgery.operation.algorithms import algorithm_of
from hessian_surgery.operation.config import OperationConfig, SurgeryConfig
from hessian_surgery.operation.cost import check_memory
from hessian_surgery.operation.criteria_goal import config_to_count
from hessian_surgery.operation.driver import Ending, run_in_folder, why_ended
from hessian_surgery.operation.environment import environment
from hessian_surgery.operation.expected import expected_operation
from hessian_surgery.operation.findings import Findings, make_findings
from hessian_surgery.operation.folds import Kept, folds_ended, operate_in_folds
from hessian_surgery.operation.front import describe_front
from hessian_surgery.operation.iteration_record import IterationRecord
from hessian_surgery.operation.judge import CheckedJudge, Judge, check_judge, measure_judge, require_one
from hessian_surgery.operation.leak_check import LeakCheck
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.outcome import Outcome
from hessian_surgery.operation.problem import Inputs, Problem, check_inputs, measure_start
from hessian_surgery.operation.progress import watched
from hessian_surgery.operation.recalibration import can_recalibrate, head_of, recalibrate
from hessian_surgery.operation.state_file import load_passes
from hessian_surgery.operation.warnings import find_warnings
from hessian_surgery.plain_modes import in_plain_modes
from hessian_surgery.weights.adapter import is_adapted, own_names
from hessian_surgery.weights.changed import WeightChanges, count_changes
from hessian_surgery.weights.checkpoint import stored_state


@in_plain_modes
def operate(
    model: nn.Module | Classifier,
    *,
    training_data: Data,
    calibration_data: Data,
    heldout_data: Data | None = None,
    folds: int | None = None,
    config: OperationConfig | None = None,
    accept: Accept | None = None,
    stored_as: Mapping[str, torch.dtype] | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    front: bool = False,
    observer: Observer | None = None,
    progress: bool = False,
) -> Outcome:
    """Operate on a model in place; if anything goes wrong, the starting weights are restored.

    Args:
        model: the trained classifier, a module or a `Classifier`; only its weights change.
        training_data: images that the model was trained on; class gradients come from these.
        calibration_data: images that decisions are made on; the head is refitted to these, and if
            there are enough, they have class gradients too.
        heldout_data: images that only the report sees.
        folds: instead of held-out data: the mean step of so many operations, each without one fold
            of the calibration images and judged on it.
        config: the settings; `SurgeryConfig()` by default, or a `LoopConfig` for the paper's loop.
        accept: criteria for the held-out images, such as `{"maximum_drop": 0.03}`, or a TOML file.
        stored_as: dtypes by tensor name that patched weights are rounded to, as in their file.
        folder: gets history and state after each iteration, so that a killed run can be resumed.
        resume: continue from the state in `folder`, if there is one.
        front: also predict other objectives and budgets, for the report's explorer; not with folds.
        observer: is told about progress.
        progress: show a bar on stderr, or a line now and then where that is no terminal.

    Example:
        >>> outcome = hs.operate(
        ...     model, training_data=train, calibration_data=calibration, heldout_data=heldout,
        ...     config=hs.SurgeryConfig(budget=0.005), accept={"maximum_drop": "20pp"},
        ... )
        >>> outcome.verdict.outcome, outcome.accepted
        ('better', True)
    """
    started = time.perf_counter()
    require_one(heldout_data, folds)
    training, calibration = as_part(training_data, "training_data"), as_part(calibration_data, "calibration_data")
    kept = Kept(Path(folder) if folder else None, resume, stored_as)
    heldout = None if heldout_data is None else as_part(heldout_data, "heldout_data")
    criteria = as_criteria(accept, calibration.classes)
    config = config or SurgeryConfig()
    with kept_for_passes(as_classifier(model).device), watched(observer, progress) as observer:
        counted = config_to_count(config, criteria)
        fits = partial(check_memory, as_classifier(model), training, calibration, heldout, counted)
        inputs = check_inputs(model, training, calibration, config, progress=observer.reading, before_reading=fits)
        checked = check_judge(inputs, training, heldout, folds, observer.reading)
        costed = replace(inputs, config=counted)
        observer.expect(partial(expected_operation, costed, training, checked.heldout, folds, front))
        return _begin(inputs, checked, criteria, front, kept, observer, started)


def _begin(
    inputs: Inputs[Any],
    checked: CheckedJudge,
    criteria: Criteria | None,
    front: bool,
    kept: Kept,
    observer: Observer,
    started: float,
) -> Outcome:
    """Measure the starting model, and operate; after an error the starting weights come back."""
    observer.stage("prepare", 0, 2)
    problem, before = measure_start(inputs, _passes(kept))
    observer.stage("prepare", 1, 2)
    judge = measure_judge(problem, before, checked)
    start = problem.space.snapshot()
    problem = replace(problem, criteria=criteria, with_front=front)
    try:
        outcome = _operate(problem, before, judge, start, kept, observer)
        outcome = replace(outcome, seconds=time.perf_counter() - started)
        observer.end(outcome)
        return outcome
    except BaseException:
        problem.space.restore(start)
        raise


@dataclass(frozen=True)
class _Done:
    """What the operation, or those of all folds, did to the weights in the module.

    Attributes:
        records: of all iterations.
        ending: what was left behind, before weights were rounded.
        ended: why no iteration was left to do.
        bias: the answers, to the images that judge, of the class bias; None if none was fitted.
        answers: to each image by the operation that did not see it; None without folds.
    """

    records: Sequence[IterationRecord]
    ending: Ending
    ended: str
    bias: Answers | None
    answers: Answers | None = None


def _run(
    problem: Problem[Any], before: Answers, judge: Judge, start: Snapshot, kept: Kept, observer: Observer
) -> _Done:
    """Do it; the patched weights, not rounded yet, stay in the module."""
    if judge.fold_of is None:
        algorithm = algorithm_of(problem.config)
        records, ending = run_in_folder(algorithm, problem, kept.folder, kept.resume, observer)
        return _Done(records, ending, why_ended(algorithm, problem, records, ending), _biased(judge, ending))
    found = operate_in_folds(problem, before, judge.fold_of, start, kept, observer)
    data = problem.calibration_data
    seen = answer(problem.classifier, data, problem.batch_size)
    reached = class_accuracy(seen.predicted, data.labels, len(data.classes))
    ending = Ending(reached, overconfidence=found.overconfidence)
    ended = folds_ended(found.moved, int(judge.fold_of.max()) + 1)
    return _Done(found.records, ending, ended, found.bias, found.answers)


def _operate(
    problem: Problem[Any], before: Answers, judge: Judge, start: Snapshot, kept: Kept, observer: Observer
) -> Outcome:
    """The operation that is delivered, and its evidence; the patched weights stay in the module."""
    module = problem.classifier.module
    base_weights = stored_state(module, kept.stored_as)
    for sentence in judge.leaks.sentences:
        observer.remark(sentence)
    algorithm = algorithm_of(problem.config)
    done = _run(problem, before, judge, start, kept, observer)
    observer.stage("report", 0, 3)
    changed = _changes(problem, base_weights, kept)
    temperature = recalibrate(problem, done.ending.overconfidence)
    problem.space.round_to(kept.stored_as or {})
    data = problem.calibration_data
    after = answer(problem.classifier, data, problem.batch_size)
    observer.stage("report", 1, 3)
    calibration = BeforeAfter(data.classes, data.index, data.labels, before, after)
    warnings = find_warnings(problem, judge.heldout, done.records, done.ending.accuracy, calibration, temperature)
    data = judge.heldout or data
    after = done.answers or answer(problem.classifier, data, problem.batch_size)
    held = BeforeAfter(data.classes, data.index, data.labels, judge.before, after)
    observer.stage("report", 2, 3)
    asked, seed = algorithm.asked(problem), problem.config.seed
    warnings += judge.leaks.sentences
    free = can_recalibrate(problem) and not problem.config.recalibrate
    findings = make_findings(
        calibration, held, asked, warnings, seed, folds=judge.folds, temperature=temperature, free=free, noun=data.noun
    )
    findings = replace(findings, changed=changed).with_simpler(_simpler(held, done, seed))
    outcome = Outcome(
        config=problem.config,
        findings=findings,
        iterations=tuple(done.records),
        ended=done.ended,
        front=_front(done.ending, findings),
        structure=analyse(np.reshape(done.records[0].responses.values, (-1, len(data.classes))), data.classes),
        choices=algorithm.choices(problem) | asdict(problem.passes),
        split=_split(problem, findings, judge.leaks),
        seconds=0.0,
        environment=environment(problem.classifier.device),
        base_weights=base_weights,
        weights=stored_state(module, kept.stored_as),
        fold_of=judge.fold_of,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        model=type(module).__name__,
        data=judge.leaks.data,
    )
    return outcome if problem.criteria is None else with_criteria(outcome, problem.criteria)


def _changes(problem: Problem[Any], base: Mapping[str, Tensor], kept: Kept) -> WeightChanges:
    """Which weights the operation has changed, as they will be stored."""
    module = problem.classifier.module
    head = head_of(problem)
    every = list(module.named_parameters(remove_duplicate=False))
    names = [[name for name, other in every if other is parameter] for parameter in module.parameters()]
    head_name = None if head is None else head.name
    if is_adapted(module):
        own = own_names(module)
        names = [[own[name] for name in same if name in own] for same in names]
        head_name = own.get(f"{head_name}.weight", "").removesuffix(".weight") or None
    return count_changes(base, stored_state(module, kept.stored_as), names, head_name)


def _biased(judge: Judge, ending: Ending) -> Answers | None:
    """The answers of the class bias to the held-out images, from the starting model's logits."""
    if ending.biases is None or judge.logits is None or judge.heldout is None:
        return None
    return answers_of(judge.logits + judge.logits.new_tensor(ending.biases), judge.heldout.labels)


def _simpler(held: BeforeAfter, done: _Done, seed: int) -> Simpler | None:
    """What a class bias does; in folds each has its own, so that no biases can be told."""
    return None if done.bias is None else make_simpler(held, done.bias, tuple(done.ending.biases or ()), seed)


def _passes(kept: Kept) -> Passes | None:
    """How the run that is resumed made its passes; None if none is."""
    return load_passes(kept.folder) if kept.folder and kept.resume else None


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


def _split(problem: Problem[Any], findings: Findings, leaks: LeakCheck) -> dict[str, Any]:
    finder = problem.finder
    drawn = problem.gradient_data
    return {
        "seed": problem.config.seed,
        "calibration": len(findings.calibration.labels),
        "heldout": len(findings.heldout.labels),
        "folds": findings.folds,
        "note": findings.note,
        "hessian": 0 if finder is None else min(finder.search.hessian_samples, len(finder.data)),
        "gradients": 0 if drawn is None else len(drawn),
        **leaks.as_dict(),
    }
