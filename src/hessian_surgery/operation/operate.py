"""operate: the whole operation on a model, measured before and after on images that nothing was fitted to."""

import platform
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hessian_surgery.curvature.memory_plan import describe_storage
from hessian_surgery.data.labelled import Data, LabelledSet, as_labelled, refuse_same
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.evidence.effective_rank import analyse
from hessian_surgery.evidence.metrics import class_accuracy, sigma
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import Answers, answer
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.operation.outcome import HistoryWriter, Outcome, find, load_history
from hessian_surgery.operation.problem import convergence_warning, every_class, prepare, rare_class_warning
from hessian_surgery.operation.resume import fingerprint, load_state, save_state, saved_storage
from hessian_surgery.operation.rounds import run_planned
from hessian_surgery.paper.loop import IterationRecord, Observer, Problem, run_loop
from hessian_surgery.types import Array
from hessian_surgery.version import __version__


def operate(
    model: nn.Module | Classifier,
    *,
    training_data: Data,
    calibration_data: Data,
    heldout_data: Data,
    config: SurgeryConfig | None = None,
    stored_as: Mapping[str, torch.dtype] | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    observer: Observer | None = None,
) -> Outcome:
    """Operate on a model in place.

    The patched weights stay in the module; its mode, gradients, buffers and requires_grad are left as they were.
    If anything goes wrong the starting weights come back.

    Args:
        model: the trained classifier, a module or a `Classifier`.
        training_data: where Hessian batches are drawn from: training images.
        calibration_data: images that S and every decision are measured on.
        heldout_data: images that only the report sees.
        config: the choices; `SurgeryConfig()` by default.
        stored_as: name and dtype of each tensor in the file that the model will be saved to, by default the module's:
            the patched weights are rounded to it, so that what is measured is what is saved.
        folder: keep history and state there after each iteration, so that a killed run can go on.
        resume: go on from the state in `folder`, if there is one.
        observer: told about progress.
    """
    started, config = time.perf_counter(), config or SurgeryConfig()
    problem, before = prepare(model, training_data, calibration_data, config, config.uses_spikes, config.uses_gradients)
    classifier = problem.classifier
    heldout = every_class(as_labelled(heldout_data), "heldout_data").resident(classifier.device)
    if heldout.classes != problem.calibration_data.classes:
        raise InputError("heldout_data: its classes are not those of calibration_data")
    refuse_same(problem.calibration_data, heldout, "heldout_data")
    heldout_before = answer(classifier, heldout, config.batch_size)
    base_weights = stored_state(classifier.module, stored_as)
    start = problem.space.snapshot()
    try:
        records, unrounded = _run(problem, Path(folder) if folder else None, resume, observer or Observer())
        problem.space.round_to(stored_as or {})
        sensitivity = _compare(classifier, problem.calibration_data, before, config)
        held = _compare(classifier, heldout, heldout_before, config)
        notes = _warnings(problem, heldout, records, unrounded, sensitivity)
        return Outcome(
            config=config,
            findings=find(sensitivity, held, notes, config.seed),
            iterations=tuple(records),
            structure=analyse(np.array(records[0].sensitivity), heldout.classes),
            choices=problem.choices(),
            split=_split(problem, heldout),
            seconds=time.perf_counter() - started,
            environment=environment(classifier.device),
            base_weights=base_weights,
            weights=stored_state(classifier.module, stored_as),
        )
    except BaseException:
        problem.space.restore(start)
        raise


def stored_state(module: nn.Module, stored_as: Mapping[str, torch.dtype] | None) -> dict[str, Tensor]:
    """A copy of a module's state on the CPU, with the names and in the dtypes that it is stored in."""
    state = module.state_dict()
    dtypes = stored_as if stored_as is not None else {name: tensor.dtype for name, tensor in state.items()}
    return {name: state[name].detach().cpu().to(dtype, copy=True) for name, dtype in dtypes.items()}


def environment(device: torch.device) -> dict[str, Any]:
    """What the figures depend on besides the seed."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "hessian-surgery": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": name,
        "threads": torch.get_num_threads(),
    }


def rounding_warning(base: Array, unrounded: Array, rounded: Array) -> str | None:
    """What rounding to the stored dtype took of the gain on the calibration images, if a tenth or more."""
    gain, lost = sigma(base) - sigma(unrounded), sigma(rounded) - sigma(unrounded)
    if gain <= 0 or lost < 0.1 * gain:
        return None
    return (
        f"rounding to the stored dtype took {100 * lost / gain:.0f} % of the gain: σ on the calibration images is "
        f"{100 * sigma(rounded):.2f} pp, {100 * sigma(unrounded):.2f} before rounding"
    )


def _run(
    problem: Problem, folder: Path | None, resume: bool, observer: Observer
) -> tuple[list[IterationRecord], Array]:
    """The loop, with its history and state kept in `folder`; records, and accuracies of the returned iterate."""
    run = run_planned if problem.config.algorithm == "planned" else run_loop
    if problem.config.uses_spikes:
        observer.remark(describe_storage(problem.storage, problem.space))
    if folder is None:
        history = HistoryWriter(None, [], observer)
        accuracy = run(problem, history)
        return history.records, accuracy
    if not resume and (folder / "history.jsonl").exists():
        raise InputError(f"folder: {folder} holds another run; give another, or resume=True to go on with it")
    identity = fingerprint(problem)
    state = load_state(folder, problem, identity) if resume else None
    if state is not None:
        problem = replace(problem, storage=saved_storage(folder))
    history = HistoryWriter(folder, load_history(folder, state.iteration) if state else [], observer)
    accuracy = run(problem, history, state, keep=lambda kept: save_state(folder, problem, kept, identity))
    return history.records, accuracy


def _compare(classifier: Classifier, data: LabelledSet, before: Answers, config: SurgeryConfig) -> BeforeAfter:
    return BeforeAfter(data.classes, data.index, data.labels, before, answer(classifier, data, config.batch_size))


def _warnings(
    problem: Problem, heldout: LabelledSet, records: list[IterationRecord], unrounded: Array, sensitivity: BeforeAfter
) -> tuple[str, ...]:
    rounded = class_accuracy(sensitivity.after.predicted, sensitivity.labels, len(sensitivity.classes))
    found = (
        *(_spike_warnings(problem, records) if problem.config.uses_spikes else ()),
        _idle_warning(problem, records),
        *(_target_warning(problem, name, wanted, rounded) for name, wanted in problem.config.targets.items()),
        rare_class_warning(problem.calibration_data, "calibration"),
        rare_class_warning(heldout, "held-out"),
        rounding_warning(problem.base, unrounded, rounded),
    )
    return problem.notes + tuple(warning for warning in found if warning)


def _spike_warnings(problem: Problem, records: list[IterationRecord]) -> tuple[str | None, ...]:
    fewest = min(len(record.eigenvalues) for record in records)
    return (
        convergence_warning([record.residuals for record in records], problem.config.tolerance),
        f"only {fewest} of {problem.spikes} spikes have a positive eigenvalue" if fewest < problem.spikes else None,
    )


def _target_warning(problem: Problem, name: str, wanted: float, reached: Array) -> str | None:
    """That a target was foreseen to be reached and was not, if so."""
    accuracy = reached[problem.calibration_data.classes.index(name)]
    if accuracy >= wanted:
        return None
    return f"target {name}={wanted:g} is missed on the calibration images: {100 * accuracy:.1f} % is reached"


def _idle_warning(problem: Problem, records: list[IterationRecord]) -> str | None:
    """Why a planned operation did nothing, if it did."""
    if any(record.accepted for record in records) or records[0].gain is None:
        return None
    if problem.config.targets:
        return "nothing was done: no step was foreseen to come nearer to the targets beyond noise, or it broke a limit"
    foreseen, error = (100 * records[0].gain[key] for key in ("foreseen", "error"))
    return f"nothing was done: the best step was foreseen to gain {foreseen:.2f} ± {error:.2f} pp, or broke a limit"


def _split(problem: Problem, heldout: LabelledSet) -> dict[str, int]:
    config, drawn = problem.config, problem.gradient_data
    return {
        "seed": config.seed,
        "calibration": len(problem.calibration_data),
        "heldout": len(heldout),
        "hessian": min(config.hessian_samples, len(problem.training_data)) if config.uses_spikes else 0,
        "gradients": 0 if drawn is None else len(drawn),
    }
