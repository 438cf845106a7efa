"""The default operation, one iteration at a time: propose a step, measure it, keep it or not."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hessian_surgery.curvature.basis import length
from hessian_surgery.data.checks import require_images
from hessian_surgery.evidence.accuracies import Rates
from hessian_surgery.evidence.asked import Asked
from hessian_surgery.evidence.metrics import sigma
from hessian_surgery.model.freed_memory import give_back
from hessian_surgery.operation.class_bias import fit_class_bias
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.operation.crossfit import PredictedStep
from hessian_surgery.operation.driver import Algorithm, Ending, iterations_of
from hessian_surgery.operation.feasibility import require_reachable
from hessian_surgery.operation.gain import is_worth_a_step, is_worth_another
from hessian_surgery.operation.goal import Goal
from hessian_surgery.operation.iteration_record import StepRecord
from hessian_surgery.operation.iteration_work import work_of
from hessian_surgery.operation.observer import Observer, timed
from hessian_surgery.operation.problem import Problem
from hessian_surgery.operation.proposal import (
    Proposal,
    Survey,
    decide,
    find_front,
    find_responses,
    operation_goal,
    survey,
)
from hessian_surgery.operation.protection import protection
from hessian_surgery.operation.recalibration import find_overconfidence
from hessian_surgery.operation.state_file import Packed
from hessian_surgery.operation.step import TriedStep, try_step
from hessian_surgery.types import Array


@dataclass(frozen=True)
class DefaultState:
    """Where the default operation stands between two iterations.

    Attributes:
        iteration: iterations finished.
        accuracy: class accuracies (C,) of the present weights.
        finished: whether the operation ends here, because another iteration is not worth it.
        optimism: how far accuracy on the calibration images exceeds what is predicted for other
            images. The steps were fitted to the calibration images, so accuracy there is inflated.
        front: predictions for other objectives and budgets, made in the first iteration.
        biases: what a class bias for the same goal adds to each logit (C), fitted there too.
        overconfidence: what a temperature that is fitted there too must be multiplied by.
    """

    iteration: int
    accuracy: Array
    finished: bool = False
    optimism: float = 0.0
    front: dict[str, Any] | None = None
    biases: list[float] | None = None
    overconfidence: float = 1.0


def start(problem: Problem[SurgeryConfig]) -> DefaultState:
    """The state before the first iteration."""
    data = problem.calibration_data
    require_images(data.labels, data.classes, "calibration_data", at_least=2)
    return DefaultState(0, problem.base)


def iterate(
    problem: Problem[SurgeryConfig], state: DefaultState, observer: Observer
) -> tuple[DefaultState, StepRecord]:
    """One iteration: find directions, model the logits, plan a step, take it and check it.

    Once a step has been fitted to the calibration images, accuracy on them is inflated, so the
    floor on overall accuracy rises by `optimism`. The limits of protected classes stay as they are.
    """
    seconds: dict[str, float] = {}
    first = state.iteration == 0
    goal = operation_goal(problem)
    goal = replace(goal, floor=goal.floor + state.optimism)
    give_back()
    found = survey(problem, state.iteration + 1, goal, seconds, observer)
    give_back()
    with timed(seconds, "plan"):
        proposal = decide(found, goal, problem.config.seed)
        if first:
            _require_targets(problem, goal, found)
        biases = fit_class_bias(problem, found, goal) if first else state.biases
    with timed(seconds, "front"):
        front = None
        if first and problem.with_front:
            observer.stage("front", 0, 1)
            front = find_front(problem, found)
    with timed(seconds, "measure"):
        observer.stage("measure", 0, 1)
        tried = try_proposal(problem, goal, found, proposal)
        taken = tried if tried and tried.kept else None
        overconfidence = state.overconfidence
        if taken and problem.config.recalibrate:
            overconfidence *= find_overconfidence(problem, found.directions, proposal.plan.coefficients, taken)
        if taken:
            problem.space.perturb(taken.step)
    record = _record(problem, state, found, proposal, tried, seconds)
    finished = not taken or not is_worth_another(proposal.gain)
    following = replace(state, iteration=state.iteration + 1, finished=finished, front=state.front or front)
    following = replace(following, biases=biases, overconfidence=overconfidence)
    if taken:
        optimism = _optimism(problem, state, proposal.plan, taken)
        following = replace(following, accuracy=taken.rates.per_class, optimism=optimism)
    return following, record


def _require_targets(problem: Problem[SurgeryConfig], goal: Goal, found: Survey) -> None:
    """Raise Infeasible if the targets cannot be reached; criteria that cannot are reported."""
    classes = problem.calibration_data.classes
    named = {classes.index(name): value for name, value in problem.config.targets.items()}
    wanted = replace(goal, targets=named)
    steps = found.candidates.steps
    if named and named != dict(goal.targets):
        # The steps so far aim at criteria as well.
        steps += found.candidates_for(wanted).steps
    without = operation_goal(replace(problem, criteria=None)).limits
    require_reachable(wanted, steps, classes, without)


def try_proposal(problem: Problem[SurgeryConfig], goal: Goal, found: Survey, proposal: Proposal) -> TriedStep | None:
    """Measure the proposed step, if it is predicted to gain more than noise; None if it is not.

    The weights come back bit for bit.
    """
    if not is_worth_a_step(proposal.gain):
        return None
    present = found.surrogate.rates()
    return try_step(problem, goal, found.directions, proposal.plan.coefficients, present)


def _record(
    problem: Problem[SurgeryConfig],
    state: DefaultState,
    found: Survey,
    proposal: Proposal,
    tried: TriedStep | None,
    seconds: dict[str, float],
) -> StepRecord:
    plan = proposal.plan
    spikes = found.spikes
    directions = found.directions
    candidate = tried.rates.per_class if tried else state.accuracy
    kept = candidate if tried and tried.kept else state.accuracy
    return StepRecord(
        iteration=state.iteration + 1,
        accepted=tried is not None and tried.kept,
        eigenvalues=[] if spikes is None else spikes.eigenvalues.tolist(),
        residuals=[] if spikes is None else spikes.residuals.tolist(),
        products=0 if spikes is None else spikes.steps,
        coefficients=((tried.share if tried else 1.0) * plan.coefficients).tolist(),
        responses=find_responses(found.surrogate, directions.labels).recorded(plan.coefficients),
        candidate_sigma=tried.rates.sigma if tried else plan.rates.sigma,
        max_drop=float((state.accuracy - candidate).max()),
        sigma=sigma(kept),
        accuracy=problem.overall(kept),
        worst=float(kept.min()),
        per_class=kept.tolist(),
        seconds=seconds,
        predicted=plan.rates.per_class.tolist(),
        gain=proposal.gain,
        length=length(tried.step) if tried else 0.0,
    )


def _optimism(problem: Problem[SurgeryConfig], state: DefaultState, plan: PredictedStep, taken: TriedStep) -> float:
    """How far calibration accuracy exceeds what is predicted for other images, after a step."""
    before = problem.overall(state.accuracy)
    predicted = before + taken.share * (plan.rates.accuracy - before)
    return max(0.0, state.optimism + taken.rates.accuracy - predicted)


def _choices(problem: Problem[SurgeryConfig]) -> dict[str, Any]:
    config = problem.config
    promised = protection(problem).as_dict(problem.calibration_data.classes)
    return {"directions": config.directions, "budget": config.budget} | promised


def _asked(problem: Problem[SurgeryConfig]) -> Asked:
    config = problem.config
    limits = protection(problem).limits(problem.calibration_data.classes)
    if problem.criteria is not None:
        stricter = {name: problem.criteria.of(name).maximum_drop for name in limits}
        limits = {
            name: limit if (most := stricter[name]) is None else min(limit, most) for name, limit in limits.items()
        }
    return Asked(config.target, config.budget, config.targets, limits)


def _warnings(problem: Problem[SurgeryConfig], _records: Sequence[StepRecord], reached: Array) -> tuple[str, ...]:
    classes = problem.calibration_data.classes
    missed = [
        f"target {name}={wanted:g} is missed on the calibration images: "
        f"{100 * reached[classes.index(name)]:.1f} % is reached"
        for name, wanted in problem.config.targets.items()
        if reached[classes.index(name)] < wanted
    ]
    return tuple(missed)


def _ended(problem: Problem[SurgeryConfig], records: Sequence[StepRecord]) -> str:
    """Why no iteration was left to do."""
    config = problem.config
    last = records[-1]
    if last.accepted:
        enough = len(records) >= config.iterations
        why = "the most that is allowed" if enough else "as another would hardly gain more than noise"
        return f"Ended after {iterations_of(len(records))}, {why}."
    done = "Nothing more was done" if len(records) > 1 else "Nothing was done"
    if last.length > 0:
        return f"{done}: the best step broke a limit or gained nothing when it was measured, even when halved."
    goal = operation_goal(problem)
    if goal.targets and len(records) == 1 and goal.shortfall(Rates(problem.overall(problem.base), problem.base)) == 0:
        return f"{done}: every target is reached already, and no step was predicted to gain more beyond noise."
    if not any(last.coefficients):
        return f"{done}: no step within the limits was predicted to gain anything."
    if goal.targets:
        wanted = "targets" if config.targets else "criteria"
        return f"{done}: no step was predicted to come nearer to the {wanted} beyond noise."
    aim = "lower σ" if config.target == "sigma" else "lift the worst class"
    amount = f"{100 * last.gain.predicted:.2f} ± {100 * last.gain.error:.2f} pp"
    return f"{done}: the best step was predicted to {aim} by {amount}, which is within noise."


def _pack(_folder: Path, _problem: Problem[SurgeryConfig], state: DefaultState, _identity: str) -> Packed:
    plain = {
        "iteration": state.iteration,
        "finished": state.finished,
        "optimism": state.optimism,
        "front": state.front,
        "biases": state.biases,
        "overconfidence": state.overconfidence,
    }
    return {"accuracy": torch.from_numpy(state.accuracy)}, plain


def _unpack(
    _folder: Path,
    _problem: Problem[SurgeryConfig],
    tensors: dict[str, Tensor],
    plain: dict[str, Any],
    _identity: str,
) -> DefaultState:
    return DefaultState(accuracy=tensors["accuracy"].numpy(), **plain)


DEFAULT = Algorithm(
    record=StepRecord,
    start=start,
    iterate=iterate,
    finished=lambda problem, state: state.finished or state.iteration >= problem.config.iterations,
    may_end=lambda state: state.iteration > 0,
    finish=lambda problem, state: Ending(
        state.accuracy, state.front, biases=state.biases, overconfidence=state.overconfidence
    ),
    choices=_choices,
    asked=_asked,
    warnings=_warnings,
    ended=_ended,
    pack=_pack,
    unpack=_unpack,
    work=work_of,
)
