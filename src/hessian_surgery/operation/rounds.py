"""The planned operation: few, larger, verified steps. A surrogate of the logits proposes, one forward pass disposes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hessian_surgery.curvature.basis import length
from hessian_surgery.curvature.lanczos import Spectrum
from hessian_surgery.data.checks import require_images
from hessian_surgery.directions.biases import bias_directions
from hessian_surgery.directions.class_gradients import class_gradients
from hessian_surgery.directions.family import Directions, Probe, join
from hessian_surgery.directions.logit_changes import logits_after, logits_after_steps
from hessian_surgery.directions.spikes import spike_directions
from hessian_surgery.evidence.metrics import sigma
from hessian_surgery.evidence.rates import TEMPERATURE, Rates, logit_unit, rates, soft_rates
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.model.head import find_head
from hessian_surgery.operation.crossfit import ERRORS, Foreseen, Look, Prospect, Surrogate, gain
from hessian_surgery.operation.feasibility import explain
from hessian_surgery.operation.front import trace
from hessian_surgery.operation.goal import Goal
from hessian_surgery.paper.loop import (
    IterationRecord,
    NoSpikes,
    Observer,
    Problem,
    State,
    curvature,
    find_spikes,
    timed,
)
from hessian_surgery.paper.plan import Target
from hessian_surgery.types import Array

# Each round gains about a third of the one before (docs/results/surgery.md); another must be worth its noise as well.
REST = 3.0
# A step that breaks a limit where it is measured is halved so often before it is given up.
HALVINGS = 3


@dataclass(frozen=True)
class Tried:
    """A step as it was measured.

    Attributes:
        step: δθ (p,).
        share: of the proposed one that it is.
        rates: on the calibration images.
        kept: whether it is better than what was, and within the goal's limits.
    """

    step: Tensor
    share: float
    rates: Rates
    kept: bool


def run_planned(
    problem: Problem,
    observer: Observer,
    state: State | None = None,
    keep: Callable[[State], None] | None = None,
) -> Array:
    """Propose, measure and keep steps until none is foreseen to gain more than twice the standard error of its gain, or
    until the last one gained so little that the next one, which gains less, hardly would.

    From the second round on, the images have been fitted to, and accuracy on them flatters: the floor rises by what was
    gained there beyond what was foreseen on other images. (Protected classes, which are not lifted, are not flattered.)

    Arguments and result as for `run_loop`.
    """
    data = problem.calibration_data
    require_images(data.labels, data.classes, "calibration_data", at_least=2)
    state = state or State(0, problem.base, None, problem.base, problem.space.snapshot())
    while state.iteration < problem.config.iterations and not state.idle:
        try:
            state, record = operate_once(problem, state, observer)
        except NoSpikes as reason:
            if state.iteration == 0:
                raise
            observer.remark(f"{reason}; the rounds so far count")
            break
        observer.iteration(record)
        if keep is not None:
            keep(state)
    problem.space.restore(state.best_weights)
    return state.best_accuracy


def operate_once(problem: Problem, state: State, observer: Observer) -> tuple[State, IterationRecord]:
    """One round: directions, surrogate, plan, step, check."""
    config, data, seconds = problem.config, problem.calibration_data, dict[str, float]()
    goal = problem.goal()
    goal = replace(goal, floor=goal.floor + state.flattered)
    with timed(seconds, "directions"):
        logits = compute_logits(problem.classifier, data, config.batch_size).to(problem.space.device)
        spikes = _spikes(problem, state.iteration + 1, observer)
        directions = find_directions(problem, logits, spikes, observer)
    with timed(seconds, "plan"):
        surrogate = make_surrogate(problem, logits, directions)
        look = looking(problem, directions)
        prospect = Prospect(surrogate, goal, directions.exact, look, config.seed)
        plan, found = prospect.choose(goal), prospect.steps
        expected, error = gain(found[0].predicted, plan.predicted, surrogate.labels, goal, config.seed)
        if state.iteration == 0:
            explain(goal, found, data.classes)
    with timed(seconds, "front"):
        front = foresee_front(problem, prospect, surrogate, directions.exact, look) if state.iteration == 0 else None
        observer.stage("plan", 1, 1)
    with timed(seconds, "measure"):
        worth = expected > (0 if goal.targets else ERRORS * error)  # who names a target wants it tried
        tried = measure(problem, goal, directions, plan, surrogate.rates()) if worth else None
        taken = tried if tried and tried.kept else None
        if taken:
            problem.space.perturb(taken.step)
        observer.stage("measure", 1, 1)
    kept = taken.rates.per_class if taken else state.accuracy
    record = IterationRecord(
        iteration=state.iteration + 1,
        phase=1,
        accepted=taken is not None,
        eigenvalues=[] if spikes is None else spikes.eigenvalues.tolist(),
        residuals=[] if spikes is None else spikes.residuals.tolist(),
        products=0 if spikes is None else spikes.steps,
        alpha=((tried.share if tried else 1.0) * plan.coefficients).tolist(),
        alpha_max=length(tried.step) if tried else 0.0,
        predicted=plan.rates.per_class.tolist(),
        candidate_sigma=tried.rates.sigma if tried else plan.rates.sigma,
        max_drop=float((state.accuracy - (tried.rates.per_class if tried else state.accuracy)).max()),
        sigma=sigma(kept),
        accuracy=problem.overall(kept),
        worst=float(kept.min()),
        per_class=kept.tolist(),
        sensitivity=responses(surrogate).tolist(),
        seconds=seconds,
        gain={"foreseen": expected, "error": error},
        front=front,
    )
    last = not taken or (expected < ERRORS * REST * error and not goal.targets)
    return _following(problem, state, plan, taken, last), record


def find_directions(problem: Problem, logits: Tensor, spikes: Spectrum | None, observer: Observer) -> Directions:
    """What the config asks for, at the present weights: the head's biases, class gradients, spikes."""
    config, data = problem.config, problem.calibration_data
    progress = partial(observer.stage, "directions")
    probe = Probe(problem.classifier, problem.space, data, logits, config.batch_size, progress)
    first, _ = next(data.batches(2, problem.classifier.device))
    bias = bias_directions(probe, find_head(problem.classifier, first))
    families = [] if bias is None else [bias]
    if problem.gradient_data is not None:
        families.append(class_gradients(probe, problem.gradient_data, config.seed))
    if spikes is not None:
        families.append(spike_directions(probe, spikes))
    return join(families)


def _spikes(problem: Problem, iteration: int, observer: Observer) -> Spectrum | None:
    """The spikes at the present weights, where they are asked for."""
    if not problem.config.uses_spikes:
        return None
    return find_spikes(problem, curvature(problem, iteration), iteration, observer)


def make_surrogate(problem: Problem, logits: Tensor, directions: Directions) -> Surrogate:
    """Logits as a linear function of the directions' coefficients, where the changes are kept."""
    changes = directions.changes
    labels = problem.calibration_data.labels.to(changes.device)
    return Surrogate(logits.to(changes.device), changes, labels, len(problem.calibration_data.classes))


def looking(problem: Problem, directions: Directions) -> Look:
    """How steps along directions are looked at."""

    data, size = problem.calibration_data, problem.config.batch_size
    after_step = logits_after_steps(problem.classifier, problem.space, data, size)
    return lambda coefficients, positions: after_step(directions.step(coefficients), positions)


def foresee_front(problem: Problem, prospect: Prospect, surrogate: Surrogate, exact: int, look: Look) -> dict[str, Any]:
    """What other objectives and budgets would do, without targets; `prospect` is that of the operation's own goal."""
    config = problem.config
    free = replace(problem, config=replace(config, targets={})).goal()
    known: dict[Target, Prospect] = {} if config.targets else {config.target: prospect}
    return trace(surrogate, free, exact, look, config.seed, known)


def measure(problem: Problem, goal: Goal, directions: Directions, plan: Foreseen, present: Rates) -> Tried:
    """Take a step and look; halve it while it breaks a limit or betters nothing. The weights come back."""
    data, size = problem.calibration_data, problem.config.batch_size
    step, share = directions.step(plan.coefficients), 1.0
    for attempt in range(HALVINGS + 1):
        logits = logits_after(problem.classifier, problem.space, step, data, size)
        seen = rates(logits, data.labels, len(data.classes))
        kept = goal.allows(seen) and goal.score(seen) < goal.score(present)
        if kept or attempt == HALVINGS:
            break
        step, share = step / 2, share / 2
    return Tried(step, share, seen, kept)


def responses(surrogate: Surrogate) -> Array:
    """How each class's soft accuracy answers to each direction (K, C), per unit of its coefficient."""
    zero = torch.zeros(len(surrogate.changes), device=surrogate.logits.device, requires_grad=True)
    temperature = TEMPERATURE * logit_unit(surrogate.logits)
    _, per_class = soft_rates(surrogate.at(zero), surrogate.labels, surrogate.classes, temperature)
    slopes = [torch.autograd.grad(value, zero, retain_graph=True)[0] for value in per_class]
    return torch.stack(slopes, dim=1).double().cpu().numpy()


def _following(problem: Problem, state: State, plan: Foreseen, taken: Tried | None, last: bool) -> State:
    """The state after a round, and after the step that was taken in it, if any."""
    following = replace(state, iteration=state.iteration + 1, idle=int(last))
    if taken is None:
        return following
    now, before = taken.rates.per_class, problem.overall(state.accuracy)
    foreseen = before + taken.share * (plan.rates.accuracy - before)
    flattered = max(0.0, state.flattered + taken.rates.accuracy - foreseen)
    best = problem.space.snapshot()
    return replace(following, accuracy=now, best_accuracy=now, best_weights=best, flattered=flattered)
