"""Recalibration: one temperature, fitted after the operation and folded into the head.

It is fitted to the calibration images. A step that was fitted to them too is surer of itself there
than elsewhere, above all a refitted head. How much, crossed steps tell: no image sees the part of
them that it helped to make.
"""

from typing import Any

import torch

from hessian_surgery.directions.family import Directions
from hessian_surgery.errors import InputError
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.model.head import Head, find_head_on
from hessian_surgery.model.temperature import fit_temperature, has_temperature
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.operation.problem import Inputs, Problem
from hessian_surgery.operation.proposal import after_coefficients
from hessian_surgery.operation.step import TriedStep
from hessian_surgery.types import Array


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


def find_overconfidence(problem: Problem[Any], directions: Directions, coefficients: Array, taken: TriedStep) -> float:
    """How many times too low a temperature is that is fitted to the calibration images.

    It is the temperature that fits the logits after the crossed step, over that after the step
    itself; 1 if no direction is crossed, or if no temperature fits one of the two.

    Args:
        problem: what is operated on, at the weights before the step.
        directions: what the step goes along.
        coefficients: as they were proposed (K,).
        taken: the step as it was measured.
    """
    if directions.sides is None:
        return 1.0
    labels = problem.calibration_data.labels
    every = torch.arange(len(labels))
    crossed = after_coefficients(problem, directions)(taken.share * coefficients, every).cpu()
    seen = taken.logits.cpu()
    if not (has_temperature(crossed, labels) and has_temperature(seen, labels)):
        return 1.0
    return fit_temperature(crossed, labels) / fit_temperature(seen, labels)


@torch.no_grad()
def recalibrate(problem: Problem[Any], overconfidence: float = 1.0) -> float | None:
    """Divide the head's weights and biases by the temperature that fits the calibration images.

    The largest logit stays the largest. Returns the temperature; None if this was not asked for,
    or if every answer is right, so that none fits.

    Args:
        problem: what was operated on, at the patched weights.
        overconfidence: what the temperature is multiplied by, as steps were fitted to the images.
    """
    head = head_of(problem) if problem.config.recalibrate else None
    if head is None:
        return None
    data = problem.calibration_data
    logits = compute_logits(problem.classifier, data, problem.batch_size)
    if not has_temperature(logits, data.labels):
        return None
    temperature = overconfidence * fit_temperature(logits, data.labels)
    head.module.weight.div_(temperature)
    if head.module.bias is not None:
        head.module.bias.div_(temperature)
    return temperature


def _unmoved(problem: Inputs[Any], head: Head) -> list[str]:
    """The head's tensors that may not move."""
    return [name for name in _names(head) if name not in problem.space.names]


def _names(head: Head) -> list[str]:
    return [head.weight_name] if head.module.bias is None else [head.weight_name, head.bias_name]
