"""Whether targets can be reached; if not, the best that can be, and what stands in the way."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hessian_surgery.errors import InputError
from hessian_surgery.operation.crossfit import PredictedStep
from hessian_surgery.operation.goal import SLACK, Goal
from hessian_surgery.types import Array


class Infeasible(InputError):
    """Targets that no predicted step reaches within the goal's limits."""


def require_reachable(
    goal: Goal, found: Sequence[PredictedStep], classes: tuple[str, ...], own: Array | None = None
) -> None:
    """Check that some step reaches the targets within the limits, with what must be to spare.

    The choice demands more of the limits, so the chosen step may still fall short.

    Args:
        goal: targets and limits.
        found: the steps to choose from; the first does nothing.
        classes: their names.
        own: the limits (C,) without acceptance criteria, if there are any of these.

    Raises:
        Infeasible: none does; the message says what is reachable, and what it would take.
    """
    if not goal.targets or any(goal.allows(step.rates) and goal.shortfall(step.rates) <= SLACK for step in found):
        return
    allowed = [step for step in found if goal.allows(step.rates)] or found[:1]
    nearest = min(allowed, key=lambda step: goal.score(step.rates))
    likely = nearest.rates.per_class - goal.known_noise.expected
    spare = goal.surety * goal.known_noise.error
    reached = ", ".join(
        f"{classes[j]} {100 * likely[j]:.1f} % (wanted {100 * wanted:.1f} %{_to_spare(spare[j])})"
        for j, wanted in goal.targets.items()
    )
    raise Infeasible(
        f"targets: cannot be reached within the limits by a first step. At best, on data not fitted to: {reached}. "
        f"{_what_blocks(goal, found, nearest, classes, own)}{_within_reach(goal, likely - spare, classes)}"
    )


def _within_reach(goal: Goal, surely: Array, classes: tuple[str, ...]) -> str:
    """The target of a single class that the nearest step would reach, if it is one class."""
    if len(goal.targets) != 1:
        return ""
    (j,) = goal.targets
    if surely[j] < 0.01:
        return f" Within these limits no target of {classes[j]} is sure."
    return f" Within these limits ask for at most {classes[j]}={int(100 * surely[j])}%."


def _to_spare(spare: float) -> str:
    """What must be to spare because accuracies are uncertain, if anything."""
    return f" and {100 * spare:.1f} pp to spare for chance" if spare else ""


def _what_blocks(
    goal: Goal, found: Sequence[PredictedStep], nearest: PredictedStep, classes: tuple[str, ...], own: Array | None
) -> str:
    """Which single limit, if lifted, would bring the targets nearer, and which class would pay."""
    free = np.full_like(goal.limits, -np.inf)
    lifted = {"the budget": replace(goal, floor=-np.inf)}
    for j in np.flatnonzero(np.isfinite(goal.limits)):
        name = f"{classes[j]}'s {'criterion' if own is not None and goal.limits[j] > own[j] else 'limit'}"
        lifted[name] = replace(goal, limits=np.where(np.arange(len(free)) == j, free, goal.limits))
    if len(lifted) > 2:
        lifted["all limits of classes"] = replace(goal, limits=free)
    base = goal.shortfall(nearest.rates)
    gains = []
    for name, easier in lifted.items():
        allowed = [step for step in found if easier.allows(step.rates)]
        best = min(allowed, key=lambda step: easier.score(step.rates), default=nearest)
        if (nearer := base - goal.shortfall(best.rates)) > SLACK:
            lost = found[0].rates.per_class - best.rates.per_class
            gains.append((nearer, f"without {name} {100 * nearer:.1f} pp nearer, {_loser(lost, classes)}"))
    if gains:
        listed = "; ".join(text for _, text in sorted(gains, reverse=True)[:3])
        eased = "give a larger max_drop=N or budget=N, or protect fewer classes"
        eased += ", or ease that criterion" if "'s criterion" in listed else ""
        return f"What blocks: {listed}. Lower the target, {eased}."
    moved = min(found, key=lambda step: goal.shortfall(step.rates))
    lost = found[0].rates.per_class - moved.rates.per_class
    return f"No single limit blocks it: no predicted step goes far enough ({_loser(lost, classes)}). Lower the target."


def _loser(lost: np.ndarray, classes: tuple[str, ...]) -> str:
    worst = int(np.argmax(lost))
    return f"where {classes[worst]} loses {100 * max(0.0, lost[worst]):.1f} pp"
