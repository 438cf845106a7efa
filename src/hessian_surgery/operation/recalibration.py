"""Recalibration: one temperature, fitted after the operation and folded into the head."""

from typing import Any

import torch

from hessian_surgery.errors import InputError
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.model.head import Head, find_head_on
from hessian_surgery.model.temperature import fit_temperature
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.operation.problem import Inputs, Problem


def head_of(problem: Inputs[Any]) -> Head | None:
    """The last linear layer of the model; None if there is no plain one."""
    return find_head_on(problem.classifier, problem.calibration_data)


def check_biases(problem: Inputs[Any]) -> None:
    """Refuse to move biases alone, if there are none that may move."""
    if isinstance(problem.config, SurgeryConfig) and problem.config.directions == "biases" and not has_biases(problem):
        raise InputError("directions: got 'biases', but the model's head has none that may move; give refit")


def has_biases(problem: Inputs[Any]) -> bool:
    """Whether the head has biases that may move."""
    head = head_of(problem)
    return head is not None and head.bias_name in problem.space.names


def check_recalibration(problem: Inputs[Any]) -> None:
    """Refuse to recalibrate a model whose head cannot be found or may not move."""
    if not problem.config.recalibrate:
        return
    head = head_of(problem)
    if head is None:
        raise InputError(
            "recalibrate: got True; it must be False for this model, whose logits do not come from a plain linear layer"
        )
    outside = _unmoved(problem, head)
    if outside:
        raise InputError(
            f"recalibrate: got True; it must be False where the head may not move, and {outside[0]!r} is not among "
            f"the parameters {problem.config.parameters!r}"
        )


def can_recalibrate(problem: Inputs[Any]) -> bool:
    """Whether the model has a head that recalibration could divide."""
    head = head_of(problem)
    return head is not None and not _unmoved(problem, head)


@torch.no_grad()
def recalibrate(problem: Problem[Any]) -> float | None:
    """Divide the head's weights and biases by the temperature that fits the calibration images.

    The largest logit stays the largest. Returns the temperature; None if this was not asked for.
    """
    head = head_of(problem) if problem.config.recalibrate else None
    if head is None:
        return None
    data = problem.calibration_data
    temperature = fit_temperature(compute_logits(problem.classifier, data, problem.batch_size), data.labels)
    head.module.weight.div_(temperature)
    if head.module.bias is not None:
        head.module.bias.div_(temperature)
    return temperature


def _unmoved(problem: Inputs[Any], head: Head) -> list[str]:
    """The head's tensors that may not move."""
    return [name for name in _names(head) if name not in problem.space.names]


def _names(head: Head) -> list[str]:
    return [head.weight_name] if head.module.bias is None else [head.weight_name, head.bias_name]
