"""Taking a step: it is measured, and halved while it breaks a limit."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hessian_surgery.directions.family import Directions
from hessian_surgery.directions.logit_changes import logits_after
from hessian_surgery.evidence.accuracies import Rates, rates
from hessian_surgery.operation.goal import Goal
from hessian_surgery.operation.problem import Problem
from hessian_surgery.types import Array

# How often a step that breaks a limit is halved before it is given up.
HALVINGS = 3


@dataclass(frozen=True)
class TriedStep:
    """A step as it was measured.

    Attributes:
        step: δθ (p,).
        share: of the proposed step.
        rates: on the calibration images.
        logits: of the calibration images (n, C).
        kept: whether it is an improvement within the goal's limits.
    """

    step: Tensor
    share: float
    rates: Rates
    logits: Tensor
    kept: bool

    @property
    def answers(self) -> Tensor:
        """The predicted class of each calibration image (n,)."""
        return self.logits.argmax(dim=1)


def try_step(
    problem: Problem[Any], goal: Goal, directions: Directions, coefficients: Array, present: Rates
) -> TriedStep:
    """Measure a step, halving it while it breaks a limit or improves nothing.

    The weights come back bit for bit.

    Args:
        problem: what is operated on.
        goal: the score to improve and the limits to keep.
        directions: what the step goes along.
        coefficients: how far (K,).
        present: the rates to improve on.
    """
    data = problem.calibration_data
    step = directions.step(coefficients)
    share = 1.0
    for attempt in range(HALVINGS + 1):
        logits = logits_after(problem.classifier, problem.space, step, data, problem.batch_size)
        seen = rates(logits, data.labels, len(data.classes))
        kept = goal.allows(seen) and goal.score(seen) < goal.score(present)
        if kept or attempt == HALVINGS:
            break
        step = step / 2
        share = share / 2
    return TriedStep(step, share, seen, logits, kept)
