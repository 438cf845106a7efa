"""Class bias under the operation's own goal and limits: what something simpler would do."""

from dataclasses import replace
from itertools import takewhile

import torch
from torch import Tensor

from hessian_surgery.evidence.accuracies import rates
from hessian_surgery.operation.choice import Candidates
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.operation.gain import estimate_gain, is_worth_a_step
from hessian_surgery.operation.goal import Goal
from hessian_surgery.operation.ladder import climb
from hessian_surgery.operation.problem import Problem
from hessian_surgery.operation.proposal import Survey
from hessian_surgery.operation.step import HALVINGS
from hessian_surgery.operation.surrogate import Surrogate, bias_maps


def fit_class_bias(problem: Problem[SurgeryConfig], found: Survey, goal: Goal) -> list[float]:
    """What to add to each logit (C): the best class bias for the goal; zeros if none gains.

    It is chosen and measured as a step is, from the same fits where the head has biases.
    """
    surrogate, candidates = _biases_only(problem, found, goal)
    chosen = candidates.choose(goal)
    before, after = candidates.nothing.answers, chosen.step.answers
    gain = estimate_gain(before, after, surrogate.labels, goal, problem.config.seed, chosen.overstated)
    assert surrogate.shifts is not None  # `_biases_only` has seen to it
    width = len(surrogate.shifts)
    biases = surrogate.shifts.double().cpu() * torch.from_numpy(chosen.step.coefficients[:width])
    worth = is_worth_a_step(gain) and bool(biases.any())
    return (_measured(surrogate, goal, biases) if worth else torch.zeros(width)).tolist()


def _biases_only(problem: Problem[SurgeryConfig], found: Survey, goal: Goal) -> tuple[Surrogate, Candidates]:
    """The steps that shift logits alone; fitted again if the head has no biases that may move."""
    surrogate = found.surrogate
    if surrogate.shifts is None:
        maps = bias_maps(surrogate.logits, surrogate.labels, surrogate.classes)
        maps = replace(maps, started=surrogate.started)
        return maps, climb(maps, goal, training_counts=problem.training_counts, seed=problem.config.seed)
    candidates = found.candidates
    if surrogate.exact == surrogate.size:
        return surrogate, candidates
    return surrogate, _first_rungs(candidates, surrogate.exact)


def _first_rungs(candidates: Candidates, exact: int) -> Candidates:
    """The families before the first one with steps beyond so many coefficients."""
    rungs = tuple(takewhile(lambda rung: not any(step.coefficients[exact:].any() for step in rung), candidates.rungs))
    steps = sum(map(len, rungs))
    free = candidates.without_targets
    return replace(
        candidates,
        rungs=rungs,
        drawn=candidates.drawn[:, :steps],
        without_targets=None if free is None else _first_rungs(free, exact),
    )


def _measured(surrogate: Surrogate, goal: Goal, biases: Tensor) -> Tensor:
    """The biases, halved while they break a limit or improve nothing; zeros if they always do."""
    present = surrogate.rates()
    for _ in range(HALVINGS + 1):
        seen = rates(surrogate.logits + biases.to(surrogate.logits), surrogate.labels, surrogate.classes)
        if goal.allows(seen) and goal.score(seen) < goal.score(present):
            return biases
        biases = biases / 2
    return torch.zeros_like(biases)
