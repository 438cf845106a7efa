"""The paper's loop (Algorithm 2): many small steps along spikes.

Each iteration finds the spikes, measures the sensitivity S of the classes to them, plans and takes
a step, accepts it or rolls it back, and adapts the amplitude, the length that a step may have.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.curvature.lanczos import Spectrum
from hessian_surgery.curvature.operators import Operator
from hessian_surgery.curvature.search import NoSpikes, SpikeFinder
from hessian_surgery.directions.family import numbered
from hessian_surgery.evidence.asked import Asked
from hessian_surgery.evidence.metrics import sigma
from hessian_surgery.operation.driver import Algorithm, Ending, Work, iterations_of
from hessian_surgery.operation.goal import Target
from hessian_surgery.operation.iteration_record import Responses
from hessian_surgery.operation.observer import Observer, timed
from hessian_surgery.operation.problem import Problem
from hessian_surgery.operation.protection import Protection
from hessian_surgery.paper.amplitude import Controller, GammaControl, Signal, curvature_amplitude, start_control
from hessian_surgery.paper.config import LoopConfig
from hessian_surgery.paper.deflation_phases import accumulate, overlap, staleness
from hessian_surgery.paper.loop_record import LoopRecord
from hessian_surgery.paper.loop_state import LoopState, pack, unpack
from hessian_surgery.paper.plan import Plan, plan, recommended_exponent, strong_floor, strong_threshold
from hessian_surgery.paper.sensitivity import accuracies, sensitivity
from hessian_surgery.paper.sensitivity_gradients import MATCHED_ALONG, MATCHED_ON, gradient_sensitivity
from hessian_surgery.types import Array

# The accuracy that a plan may cost a protected class, counted from the config's `reference` (the
# paper's 1 %).
LOOP_DROP = 0.01


def start(problem: Problem[LoopConfig]) -> LoopState:
    """The state before the first iteration."""
    return LoopState(0, problem.base, None, problem.base, problem.space.snapshot())


def iterate(problem: Problem[LoopConfig], state: LoopState, observer: Observer) -> tuple[LoopState, LoopRecord]:
    """One iteration of Algorithm 2."""
    config = problem.config
    seconds: dict[str, float] = {}
    with timed(seconds, "lanczos"):
        spectrum, deflation = _seek(problem, state, observer)
    controller = state.controller or _first_controller(problem, state, spectrum)
    with timed(seconds, "sensitivity"):
        matrix = find_sensitivity(problem, spectrum, controller.value, observer)
    with timed(seconds, "plan"):
        step = make_plan(problem, state.accuracy, spectrum, matrix, controller.value)
    with timed(seconds, "measure"):
        observer.stage("measure", 0, 1)
        before = problem.space.snapshot()
        problem.space.perturb(spectrum.combine(step.alpha))
        candidate = accuracies(problem.classifier, problem.calibration_data, problem.batch_size)
        signal = judge_candidate(candidate, state.accuracy, config)
        if not signal.accepted:
            problem.space.restore(before)
    kept = candidate if signal.accepted else state.accuracy
    following = controller.update(signal)
    labels = list(numbered("spike", len(spectrum)))
    record = LoopRecord(
        iteration=state.iteration + 1,
        phase=state.iteration // config.iterations + 1,
        accepted=signal.accepted,
        eigenvalues=spectrum.eigenvalues.tolist(),
        residuals=spectrum.residuals.tolist(),
        products=spectrum.steps,
        coefficients=step.alpha.tolist(),
        alpha_max=controller.value,
        smoothed_sigma=following.average if isinstance(following, GammaControl) else None,
        responses=Responses(labels, "length", matrix.tolist()),
        predicted_change=step.predicted.tolist(),
        candidate_sigma=signal.sigma_after,
        max_drop=signal.max_drop,
        sigma=sigma(kept),
        accuracy=problem.overall(kept),
        worst=float(kept.min()),
        per_class=kept.tolist(),
        seconds=seconds,
        deflation=deflation,
    )
    return _next_phase(problem, _advance(problem, state, kept, following), spectrum), record


def finished(problem: Problem[LoopConfig], state: LoopState) -> bool:
    """Whether all iterations are done, or patience has run out."""
    config = problem.config
    impatient = config.patience is not None and state.idle >= config.patience
    return impatient or state.iteration >= config.total_iterations


def finish(problem: Problem[LoopConfig], state: LoopState) -> Ending:
    """Put the final weights into the module: the best ones, or the last."""
    if problem.config.returned == "last":
        return Ending(state.accuracy)
    problem.space.restore(state.best_weights)
    return Ending(state.best_accuracy)


def finder_of(problem: Problem[LoopConfig]) -> SpikeFinder:
    """The spike finder, which the loop always has."""
    assert problem.finder is not None
    return problem.finder


def find_sensitivity(problem: Problem[LoopConfig], spectrum: Spectrum, epsilon: float, observer: Observer) -> Array:
    """The sensitivity S (K, C) at the present weights, from a probe of amplitude ε.

    It holds changes of class accuracies, as fractions, per unit of amplitude. A gradient takes no
    more images at a time than a Hessian product does, whose graph is known to fit into memory.
    """
    config = problem.config
    observer.stage("sensitivity", 0, 1)
    progress = partial(observer.stage, "sensitivity")
    size = problem.batch_size
    if config.sensitivity == "differences":
        return sensitivity(
            problem.classifier, spectrum, problem.calibration_data, epsilon, batch_size=size, progress=progress
        )
    size = min(size, config.search.micro_batch or config.search.hessian_samples)
    return gradient_sensitivity(
        problem.classifier, spectrum, problem.calibration_data, epsilon, batch_size=size, progress=progress
    )


def exponent_of(problem: Problem[LoopConfig]) -> float:
    """The exponent p of class errors: from the config, or by the p-rule at the starting model."""
    config = problem.config
    if config.exponent != "auto":
        return config.exponent
    count = problem.calibration_data.counts.numpy().astype(np.float64)
    return recommended_exponent(problem.base, count, config.target)


def make_plan(problem: Problem[LoopConfig], accuracy: Array, spectrum: Spectrum, matrix: Array, budget: float) -> Plan:
    """Solve the paper's eq. 5 with the config's bound and protection."""
    config = problem.config
    floor = strong_floor(
        accuracy,
        reference=problem.base if config.reference == "start" else accuracy,
        threshold=config.strong_above,
        allowed_drop=LOOP_DROP if config.max_drop is None else config.max_drop,
    )
    values = spectrum.eigenvalues
    # With fixed steps, as in the paper, every positive Ritz value counts for the box.
    counted = values[(values > 0) & (spectrum.converged | (config.search.lanczos_steps is not None))]
    return plan(
        matrix,
        accuracy,
        budget,
        exponent_of(problem),
        floor=floor,
        bound=config.bound,
        eigenvalues=np.maximum(values, counted.min(initial=values.max())),
    )


def judge_candidate(candidate: Array, previous: Array, config: LoopConfig) -> Signal:
    """Accept a candidate, or roll it back if σ rises or a class drops too much."""
    old = sigma(previous)
    new = sigma(candidate)
    max_drop = float((previous - candidate).max())
    accepted = new <= old + config.rollback_sigma and max_drop <= config.rollback_drop
    return Signal(accepted, old, new, max_drop)


def score(per_class: Array, target: Target) -> tuple[float, float]:
    """What the best weights are chosen by: higher is better; the second number breaks ties."""
    spread = -sigma(per_class)
    worst = float(per_class.min())
    return (spread, worst) if target == "sigma" else (worst, spread)


def _advance(problem: Problem[LoopConfig], state: LoopState, kept: Array, controller: Controller) -> LoopState:
    target = problem.config.target
    following = replace(state, iteration=state.iteration + 1, accuracy=kept, controller=controller)
    if score(kept, target) > score(state.best_accuracy, target):
        return replace(following, best_accuracy=kept, best_weights=problem.space.snapshot(), idle=0)
    return replace(following, idle=state.idle + 1)


def _next_phase(problem: Problem[LoopConfig], state: LoopState, spectrum: Spectrum) -> LoopState:
    """The state for the next iteration; if a phase has ended, with its spikes deflated."""
    if state.first_eigenvalue is None:
        state = replace(state, first_eigenvalue=float(spectrum.eigenvalues[0]))
    config = problem.config
    if state.iteration % config.iterations or state.iteration == config.total_iterations:
        return state
    return replace(state, controller=None, deflated=accumulate(state.deflated, spectrum), idle=0)


def _seek(
    problem: Problem[LoopConfig], state: LoopState, observer: Observer
) -> tuple[Spectrum, dict[str, float] | None]:
    """The spikes, and how well deflation worked; the operator's graph is freed on return."""
    iteration = state.iteration + 1
    finder = finder_of(problem)
    observer.stage("spikes", 0, 1)
    operator = finder.operator(iteration=iteration)
    progress = partial(observer.stage, "spikes")
    spectrum = finder.find(operator, iteration=iteration, deflated=state.deflated, progress=progress)
    return spectrum, _check_deflation(problem, state, operator, spectrum)


def _check_deflation(
    problem: Problem[LoopConfig], state: LoopState, operator: Operator, spectrum: Spectrum
) -> dict[str, float] | None:
    """How much new spikes overlap deflated ones, and how stale those are at a phase's start."""
    if state.deflated is None:
        return None
    found = {"vectors": float(len(state.deflated)), "overlap": overlap(state.deflated, spectrum)}
    if state.iteration % problem.config.iterations == 0:
        found["stale"] = staleness(operator, state.deflated, finder_of(problem).count)
    return found


def _first_controller(problem: Problem[LoopConfig], state: LoopState, spectrum: Spectrum) -> Controller:
    """The controller at a phase's start; between phases, α_max scales as 1/√λ_max (eq. 10)."""
    config = problem.config
    leading = float(spectrum.eigenvalues[0])
    if state.deflated is not None and leading < 1e-6 * (state.first_eigenvalue or leading):
        raise NoSpikes(f"phases: after {len(state.deflated)} spikes the curvature left is rounding ({leading:.2g})")
    if config.amplitude is None:
        amplitude = curvature_amplitude(leading)
    else:
        amplitude = config.amplitude * math.sqrt((state.first_eigenvalue or leading) / leading)
    return start_control(config.control, amplitude, config.iterations, sigma(state.accuracy))


def loop_protection(problem: Problem[LoopConfig]) -> Protection:
    """Which classes the loop's plans protect, and how much these may lose."""
    config = problem.config
    strong_above = strong_threshold(problem.base) if config.strong_above is None else config.strong_above
    max_drop = LOOP_DROP if config.max_drop is None else config.max_drop
    return Protection(strong_above, max_drop, problem.base > strong_above)


def _choices(problem: Problem[LoopConfig]) -> dict[str, Any]:
    promised = loop_protection(problem).as_dict(problem.calibration_data.classes)
    return {"spikes": finder_of(problem).count, "exponent": exponent_of(problem)} | promised


def _asked(problem: Problem[LoopConfig]) -> Asked:
    """The loop knows no budget, and no limit if drops count from the previous iteration."""
    limits = loop_protection(problem).limits(problem.calibration_data.classes)
    return Asked(problem.config.target, limits=limits if problem.config.reference == "start" else {})


def _ended(problem: Problem[LoopConfig], records: Sequence[LoopRecord]) -> str:
    """Why no iteration was left to do: all were done, or patience ran out."""
    config = problem.config
    enough = len(records) >= config.total_iterations
    why = "the most that is allowed" if enough else f"as the last {config.patience} gained nothing (patience)"
    return f"Ended after {iterations_of(len(records))}, {why}."


def _work(config: LoopConfig, counts: Tensor, _device: torch.device) -> Work:
    """Passes for S and a check in each iteration; images that a temperature is matched on."""
    spikes = config.search.count(len(counts))
    iterations = config.total_iterations
    if config.sensitivity == "differences":
        return Work(iterations * (2 * spikes + 1) + 2)
    matching = 2 * min(spikes, MATCHED_ALONG) * min(int(counts.sum()), MATCHED_ON)
    return Work(iterations * 2 + 2, backward=iterations, extra_images=iterations * matching)


LOOP = Algorithm(
    record=LoopRecord,
    start=start,
    iterate=iterate,
    finished=finished,
    may_end=lambda state: state.deflated is not None,
    finish=finish,
    choices=_choices,
    asked=_asked,
    warnings=lambda problem, records, reached: (),
    ended=_ended,
    pack=pack,
    unpack=unpack,
    work=_work,
)
