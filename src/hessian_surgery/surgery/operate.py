"""operate: the whole operation on a model, measured before and after on images that nothing was fitted to."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hessian_surgery.classifier import Classifier
from hessian_surgery.data.labelled import Data, LabelledSet, as_labelled
from hessian_surgery.errors import InputError
from hessian_surgery.evaluation import predict
from hessian_surgery.evidence import compare, judge
from hessian_surgery.metrics import measure
from hessian_surgery.surgery.config import SurgeryConfig
from hessian_surgery.surgery.diagnosis import analyse
from hessian_surgery.surgery.loop import Observer, Problem, run_loop
from hessian_surgery.surgery.outcome import Comparison, Outcome
from hessian_surgery.surgery.prepare import convergence_warning, every_class, prepare, rare_class_warning


def operate(
    model: nn.Module | Classifier,
    *,
    hessian_data: Data,
    sensitivity_data: Data,
    heldout_data: Data,
    config: SurgeryConfig | None = None,
    stored_as: Mapping[str, torch.dtype] | None = None,
    observer: Observer | None = None,
) -> Outcome:
    """Operate on a model in place.

    The patched weights stay in the module; its mode, gradients, buffers and requires_grad are left as they were.
    If anything goes wrong the starting weights come back.

    Args:
        model: the trained classifier, a module or a `Classifier`.
        hessian_data: where Hessian batches are drawn from: training images.
        sensitivity_data: images that S and every decision are measured on.
        heldout_data: images that only the report sees.
        config: the choices; `SurgeryConfig()` by default.
        stored_as: dtype of each tensor in the file that the model will be saved to, where it is not the module's:
            the patched weights are rounded to it, so that what is measured is what is saved.
        observer: told about progress.
    """
    started = time.perf_counter()
    problem, sensitivity_before = prepare(model, hessian_data, sensitivity_data, config or SurgeryConfig())
    classifier, config = problem.classifier, problem.config
    heldout = every_class(as_labelled(heldout_data), "heldout_data").resident(classifier.device)
    if heldout.classes != problem.sensitivity_data.classes:
        raise InputError("heldout_data: its classes are not those of sensitivity_data")
    heldout_before = predict(classifier, heldout, config.batch_size)
    base_weights = stored_state(classifier.module, stored_as or {})
    start = problem.space.snapshot()
    try:
        records = run_loop(problem, observer or Observer())
        problem.space.round_to(stored_as or {})
        weights = stored_state(classifier.module, stored_as or {})
        sensitivity = _compare(classifier, problem.sensitivity_data, sensitivity_before, config)
        held = _compare(classifier, heldout, heldout_before, config)
    except BaseException:
        problem.space.restore(start)
        raise
    tests = compare(held.predicted_before, held.predicted_after, held.labels, heldout.classes, config.seed)
    return Outcome(
        config=config,
        classes=heldout.classes,
        iterations=tuple(records),
        sensitivity=sensitivity,
        heldout=held,
        tests=tests,
        verdict=judge(tests),
        structure=analyse(np.array(records[0].sensitivity), heldout.classes),
        warnings=_warnings(problem, heldout, np.array(records[0].residuals)),
        split=_split(problem, heldout),
        seconds=time.perf_counter() - started,
        environment=environment(classifier.device),
        base_weights=base_weights,
        weights=weights,
    )


def stored_state(module: nn.Module, stored_as: Mapping[str, torch.dtype]) -> dict[str, Tensor]:
    """A copy of a module's state on the CPU, in the dtypes that it is stored in."""
    state = module.state_dict()
    return {name: t.detach().cpu().to(stored_as.get(name, t.dtype), copy=True) for name, t in state.items()}


def environment(device: torch.device) -> dict[str, Any]:
    """What the figures depend on besides the seed."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"torch": torch.__version__, "device": name, "threads": torch.get_num_threads()}


def _compare(classifier: Classifier, data: LabelledSet, before: Tensor, config: SurgeryConfig) -> Comparison:
    after, classes = predict(classifier, data, config.batch_size), len(data.classes)
    return Comparison(
        index=data.index,
        labels=data.labels,
        predicted_before=before,
        predicted_after=after,
        before=measure(before, data.labels, classes),
        after=measure(after, data.labels, classes),
    )


def _warnings(problem: Problem, heldout: LabelledSet, residuals: Any) -> tuple[str, ...]:
    found = (
        convergence_warning(residuals, problem.config.tolerance),
        rare_class_warning(problem.sensitivity_data, "sensitivity"),
        rare_class_warning(heldout, "held-out"),
    )
    return tuple(warning for warning in found if warning)


def _split(problem: Problem, heldout: LabelledSet) -> dict[str, int]:
    return {
        "seed": problem.config.seed,
        "sensitivity": len(problem.sensitivity_data),
        "heldout": len(heldout),
        "hessian": min(problem.config.hessian_samples, len(problem.hessian_data)),
    }
