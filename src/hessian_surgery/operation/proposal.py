"""The proposal: directions, a linear model of the logits along them, and the step it proposes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor

from hessian_surgery.curvature.lanczos import Spectrum
from hessian_surgery.directions.family import Directions
from hessian_surgery.directions.logit_changes import logits_after_steps
from hessian_surgery.distributed import agreed
from hessian_surgery.evidence.accuracies import TEMPERATURE, logit_unit
from hessian_surgery.evidence.deciles import MANY_CLASSES
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.model.freed_memory import give_back
from hessian_surgery.operation.choice import Candidates
from hessian_surgery.operation.coefficient_fit import PRICES
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.operation.criteria_goal import aim_at_criteria
from hessian_surgery.operation.crossfit import FOLDS, AfterCoefficients, PredictedStep
from hessian_surgery.operation.find_directions import find_directions, find_spikes
from hessian_surgery.operation.front import predict_front
from hessian_surgery.operation.gain import estimate_gain
from hessian_surgery.operation.goal import Goal, Target
from hessian_surgery.operation.iteration_record import Gain, Responses
from hessian_surgery.operation.ladder import climb
from hessian_surgery.operation.observer import Observer, timed
from hessian_surgery.operation.problem import Problem
from hessian_surgery.operation.protection import protection
from hessian_surgery.operation.starting_goal import starting_goal
from hessian_surgery.operation.surrogate import Surrogate
from hessian_surgery.types import Array


@dataclass(frozen=True)
class Survey:
    """What can be done at the present weights, whatever accuracy may be given up.

    Attributes:
        directions: what steps go along.
        surrogate: the linear model of the calibration images' logits.
        candidates: the steps to choose from.
        candidates_for: makes the candidates for another goal.
        spikes: those that were found, if any were sought.
    """

    directions: Directions
    surrogate: Surrogate
    candidates: Candidates
    candidates_for: Callable[[Goal], Candidates]
    spikes: Spectrum | None


@dataclass(frozen=True)
class Proposal:
    """The step that is chosen for a goal.

    Attributes:
        plan: the step.
        gain: what it is predicted to gain.
    """

    plan: PredictedStep
    gain: Gain


def survey(
    problem: Problem[SurgeryConfig], iteration: int, goal: Goal, seconds: dict[str, float], observer: Observer
) -> Survey:
    """Find directions, model the logits along them, and predict steps.

    Args:
        problem: what is operated on.
        iteration: its number, from 1.
        goal: what the steps aim at; its floor plays no part.
        seconds: gets the time of each stage.
        observer: told about progress.
    """
    # One block around all passes: to switch to evaluation mode again, inside, costs little.
    with problem.classifier.evaluating():
        return _survey(problem, iteration, goal, seconds, observer)


def _survey(
    problem: Problem[SurgeryConfig], iteration: int, goal: Goal, seconds: dict[str, float], observer: Observer
) -> Survey:
    config = problem.config
    with timed(seconds, "directions"):
        logits = problem.logits
        if iteration > 1:
            logits = compute_logits(problem.classifier, problem.calibration_data, problem.batch_size)
        logits = logits.to(problem.space.device)
        spikes = find_spikes(problem, iteration, observer)
        directions, origin = find_directions(problem, logits, spikes, observer, iteration)
        give_back()
    with timed(seconds, "plan"):
        observer.stage("plan", 0, 1)
        surrogate = make_surrogate(problem, logits, directions)
        candidates_for = partial(
            climb,
            surrogate,
            after=_told(problem, directions, count_plans(config, origin is not None), observer),
            training_counts=problem.training_counts,
            origin=origin,
            seed=config.seed,
        )
        return Survey(directions, surrogate, candidates_for(goal), candidates_for, spikes)


def decide(found: Survey, goal: Goal, seed: int) -> Proposal:
    """The step to try for a goal, which may differ in its floor from the one that was surveyed."""
    chosen = found.candidates.choose(goal)
    before = found.candidates.nothing.answers
    labels = found.surrogate.labels
    gain = estimate_gain(before, chosen.step.answers, labels, goal, seed, chosen.overstated)
    # Machines may round differently: what is decided is the first rank's.
    coefficients, rates, gain = agreed((chosen.step.coefficients, chosen.step.rates, gain))
    return Proposal(replace(chosen.step, coefficients=coefficients, rates=rates), gain)


def operation_goal(problem: Problem[SurgeryConfig]) -> Goal:
    """What the operation aims at, against the starting model."""
    data = problem.calibration_data
    goal = starting_goal(problem.config, problem.base, data.counts.numpy(), data.classes)
    return goal if problem.criteria is None else aim_at_criteria(goal, problem.criteria, problem.base, data.classes)


def make_surrogate(problem: Problem[Any], logits: Tensor, directions: Directions) -> Surrogate:
    """Logits as a linear function of the coefficients, on the device that holds the changes."""
    changes = directions.changes
    data = problem.calibration_data
    logits = logits.to(changes.device)
    return Surrogate(
        logits=logits,
        labels=data.labels.to(changes.device),
        classes=len(data.classes),
        outputs=directions.outputs.to(changes.device),
        changes=changes,
        shifts=logits.new_full((logits.shape[1],), directions.bias_unit) if directions.bias_unit else None,
        started=problem.started.to(changes.device),
        moving=None if directions.moving is None else directions.moving.to(changes.device),
    )


def after_coefficients(problem: Problem[Any], directions: Directions) -> AfterCoefficients:
    """How the logits after a step along directions are measured."""
    data = problem.calibration_data
    sides = directions.sides
    # Each fold, and each side of it, sees a step of its own.
    parts = FOLDS if sides is None else 2 * FOLDS
    if directions.moving is not None:
        parts *= max(1, round(len(data) / len(directions.moving)))
    after_step = logits_after_steps(problem.classifier, problem.space, data, problem.batch_size, parts)
    if sides is None:
        return lambda coefficients, positions: after_step(directions.step(coefficients), positions)

    def after(coefficients: Array, positions: Tensor) -> Tensor:
        found = []
        places = []
        for side in (0, 1):
            mine = (sides[positions.cpu()] == side).nonzero().squeeze(1)
            if len(mine) > 0:
                step = directions.step(coefficients, side)
                found.append(after_step(step, positions[mine.to(positions.device)]))
                places.append(mine)
        return torch.cat(found)[torch.cat(places).argsort().to(found[0].device)]

    return after


def count_plans(config: SurgeryConfig, refit: bool) -> int:
    """How many plans an iteration makes, each with a ray along directions at every price.

    With targets, fits aim at them and at what comes after. All start from a refit once more.
    """
    return (2 if config.targets else 1) * (2 if refit else 1)


def _told(problem: Problem[Any], directions: Directions, plans: int, observer: Observer) -> AfterCoefficients:
    """How steps are measured; an observer is told: fits are one half of a plan, passes the other.

    A front has as many passes: for the other aim; or for both, without the targets.
    """
    after = after_coefficients(problem, directions)
    passes = plans * len(PRICES) * FOLDS
    numbers = count()

    def told(coefficients: Array, positions: Tensor) -> Tensor:
        number = next(numbers)
        stage = "front" if problem.with_front and number >= passes else "plan"
        observer.stage(stage, 0.5 + number % passes / passes / 2, 1)
        return after(coefficients, positions)

    return told


def find_front(problem: Problem[SurgeryConfig], found: Survey) -> dict[str, Any]:
    """Predictions for other objectives and budgets, without targets."""
    config = problem.config
    untargeted = replace(problem, config=replace(config, targets={}))
    free = operation_goal(untargeted)
    aimed = operation_goal(problem).targets
    known: dict[Target, Candidates] = {} if aimed else {config.target: found.candidates}
    points = predict_front(found.surrogate, replace(free, targets={}), known, found.candidates_for, config.seed)
    return {"protected": protection(untargeted).protected.nonzero()[0].tolist(), **points}


def find_responses(surrogate: Surrogate, labels: Sequence[str]) -> Responses:
    """How each class's soft accuracy responds to each direction, per unit of its coefficient.

    A bias moves its own class and little else: with many classes biases are left out.

    Args:
        surrogate: the linear model of the logits.
        labels: what each direction is (K,), the biases first.
    """
    temperature = TEMPERATURE * logit_unit(surrogate.kept)
    share = torch.softmax(surrogate.kept / temperature, dim=1)
    # How each image's soft accuracy responds to each of its logits (n, L); the truth comes first.
    slope = -share[:, :1] * share / temperature
    slope[:, 0] += share[:, 0] / temperature
    count = torch.bincount(surrogate.labels, minlength=surrogate.classes)
    along = [surrogate.by_class.collect((change * slope).sum(dim=1)[None]) / count for change in surrogate.changes]
    if surrogate.shifts is not None and surrogate.classes <= MANY_CLASSES:
        own = [(slope * (surrogate.outputs == output)).sum(dim=1) for output in range(surrogate.exact)]
        biases = surrogate.shifts[:, None] * surrogate.by_class.collect(torch.stack(own)) / count
        along.insert(0, biases)
    values = torch.cat(along) if along else slope.new_zeros(0, surrogate.classes)
    return Responses(list(labels[surrogate.size - len(values) :]), "coefficient", values.double().cpu().tolist())
