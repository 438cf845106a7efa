"""The loop (Algorithm 2): spikes, sensitivity, plan, step; accept or roll back; adapt the amplitude; again."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hessian_surgery.curvature.basis import Storage
from hessian_surgery.curvature.deflation import Deflated
from hessian_surgery.curvature.hessian import Hessian
from hessian_surgery.curvature.lanczos import Spectrum, lanczos
from hessian_surgery.curvature.operators import Operator
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.splits import hessian_batch
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.metrics import sigma
from hessian_surgery.evidence.rates import Rates
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.losses import Loss
from hessian_surgery.model.parameters import ParameterSpace, Snapshot
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.operation.goal import Goal, class_number, make_goal, usual_drop, usual_threshold
from hessian_surgery.paper.amplitude import Controller, Signal, curvature_amplitude, start_control
from hessian_surgery.paper.phases import accumulate, overlap, staleness
from hessian_surgery.paper.plan import Plan, Target, plan, recommended_exponent, strong_floor, strong_threshold
from hessian_surgery.paper.sensitivity import accuracies, sensitivity
from hessian_surgery.paper.sensitivity_gradients import gradient_sensitivity
from hessian_surgery.types import Array

# What a protected class may be planned to lose in an iteration of the loop (the paper's 1 %).
LOOP_DROP = 0.01


class NoSpikes(InputError):
    """There is no positive curvature, or none is left after the phases so far."""


class Observer:
    """Told what the operation is doing; this one does nothing."""

    def remark(self, text: str) -> None:
        """What a person should know before the work begins."""

    def stage(self, name: str, done: int, total: int) -> None:
        """`done` of `total` units of a stage ("lanczos", "sensitivity", "measure") are finished."""

    def iteration(self, record: "IterationRecord") -> None:
        """An iteration is finished."""


@dataclass(frozen=True)
class Problem:
    """What is operated on, fixed for the whole run.

    Attributes:
        classifier: the model; its weights are the present iterate.
        space: the weights that may move.
        training_data: the Hessian batch, or what one is drawn from at each iteration.
        calibration_data: the images that S and every decision are measured on.
        config: the choices.
        loss: what is differentiated.
        storage: where the Lanczos basis is kept.
        base: class accuracies (C,) of the starting model on the calibration data.
        notes: what should be said about model and data.
        gradient_data: the training images that class gradients are taken over, where they are needed.
    """

    classifier: Classifier
    space: ParameterSpace
    training_data: LabelledSet
    calibration_data: LabelledSet
    config: SurgeryConfig
    loss: Loss
    storage: Storage
    base: Array
    notes: tuple[str, ...] = ()
    gradient_data: LabelledSet | None = None

    @property
    def exponent(self) -> float:
        """p, from the config or from the p-rule at the starting model."""
        config, count = self.config, self.calibration_data.counts.numpy().astype(np.float64)
        if config.exponent == "auto":
            return recommended_exponent(self.base, count, config.target)
        return config.exponent

    @property
    def spikes(self) -> int:
        """K: from the config, or C − 1."""
        return self.config.spike_count(len(self.calibration_data.classes))

    @property
    def strong_above(self) -> float:
        """Above which accuracy of the starting model a class is strong."""
        given, planned = self.config.strong_above, self.config.algorithm == "planned"
        if given is not None:
            return given
        return (usual_threshold if planned else strong_threshold)(self.base)

    @property
    def max_drop(self) -> float:
        """How much of its accuracy a protected class may lose."""
        if self.config.max_drop is not None:
            return self.config.max_drop
        if self.config.algorithm == "loop":
            return LOOP_DROP
        return usual_drop(self.base, self.calibration_data.counts.numpy())

    @property
    def protected(self) -> NDArray[np.bool_]:
        """Which classes (C,) are protected: those named, or else the strong ones; never one that has a target."""
        classes, config = self.calibration_data.classes, self.config
        chosen = (self.base > self.strong_above) & (len(config.protect) == 0)
        for name in config.protect:
            chosen[class_number(name, classes, "protect")] = True
        for name in config.targets:
            if name in config.protect:
                raise InputError(f"protect: {name!r} has a target as well; give one of the two")
            chosen[class_number(name, classes, "target")] = False
        return chosen

    def goal(self) -> Goal:
        """What a planned operation aims at."""
        config, base = self.config, Rates(self.overall(self.base), self.base)
        return make_goal(
            base,
            self.calibration_data.classes,
            aim=config.target,
            budget=config.budget,
            protected=self.protected,
            max_drop=self.max_drop,
            targets=config.targets,
        )

    def choices(self) -> dict[str, Any]:
        """What the config left open, as it was settled."""
        names = zip(self.calibration_data.classes, self.protected, strict=True)
        protected = {
            "strong_above": self.strong_above,
            "max_drop": self.max_drop,
            "protected": [name for name, chosen in names if chosen],
        }
        if self.config.algorithm == "planned":
            return {"directions": self.config.directions, "budget": self.config.budget} | protected
        return {"spikes": self.spikes, "exponent": self.exponent} | protected

    def overall(self, per_class: Array) -> float:
        """Accuracy over all calibration images from class accuracies (C,)."""
        count = self.calibration_data.counts.numpy()
        return float(per_class @ count / count.sum())


@dataclass(frozen=True)
class IterationRecord:
    """One line of `history.jsonl`. Accuracies are on the calibration data, after acceptance or rollback."""

    iteration: int
    phase: int
    accepted: bool
    eigenvalues: list[float]
    residuals: list[float]
    products: int
    alpha: list[float]
    alpha_max: float
    predicted: list[float]
    candidate_sigma: float
    max_drop: float
    sigma: float
    accuracy: float
    worst: float
    per_class: list[float]
    sensitivity: list[list[float]]
    seconds: dict[str, float]
    deflation: dict[str, float] | None = None
    gain: dict[str, float] | None = None
    front: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """The form that `history.jsonl` and `result.json` hold."""
        return asdict(self)


@dataclass(frozen=True)
class State:
    """Where the loop stands between two iterations; the present weights are in the module.

    Attributes:
        iteration: iterations finished.
        accuracy: class accuracies (C,) of the present weights.
        controller: amplitude control; None until the first spectrum has set the amplitude.
        best_accuracy: class accuracies (C,) of the best iterate so far.
        best_weights: its weights.
        idle: iterations in a row that did not better the best one.
        first_eigenvalue: λ_max of the first phase, which later phases' amplitudes are set from (eq. 10).
        deflated: orthonormal vectors (k, p) of the phases before this one; None in the first.
        flattered: how much more accuracy there is on the calibration images than is foreseen on others, since planned
            steps were fitted to them.
    """

    iteration: int
    accuracy: Array
    controller: Controller | None
    best_accuracy: Array
    best_weights: Snapshot
    idle: int = 0
    first_eigenvalue: float | None = None
    deflated: Tensor | None = None
    flattered: float = 0.0


def run_loop(
    problem: Problem,
    observer: Observer,
    state: State | None = None,
    keep: Callable[[State], None] | None = None,
) -> Array:
    """Iterate until T or until patience runs out; leave the returned iterate's weights in the module.

    Args:
        problem: what is operated on.
        observer: told about each iteration.
        state: where to go on from; by default the start.
        keep: called with the state after each iteration, once the observer knows of it.

    Returns:
        Class accuracies (C,) of the returned iterate on the calibration data.
    """
    config = problem.config
    state = state or State(0, problem.base, None, problem.base, problem.space.snapshot())
    while state.iteration < config.rounds and (config.patience is None or state.idle < config.patience):
        try:
            state, record = iterate(problem, state, observer)
        except NoSpikes as reason:
            if state.deflated is None:
                raise
            observer.remark(f"{reason}; the phases so far count")
            break
        observer.iteration(record)
        if keep is not None:
            keep(state)
    if config.returned == "best":
        problem.space.restore(state.best_weights)
        return state.best_accuracy
    return state.accuracy


def iterate(problem: Problem, state: State, observer: Observer) -> tuple[State, IterationRecord]:
    """One iteration of Algorithm 2."""
    config, seconds = problem.config, dict[str, float]()
    with timed(seconds, "lanczos"):
        spectrum, deflation = _seek(problem, state, observer)
    controller = state.controller or _first_controller(problem, state, spectrum)
    with timed(seconds, "sensitivity"):
        matrix = find_sensitivity(problem, spectrum, controller.value, observer)
    with timed(seconds, "plan"):
        step = make_plan(problem, state.accuracy, spectrum, matrix, controller.value)
    with timed(seconds, "measure"):
        before = problem.space.snapshot()
        problem.space.perturb(spectrum.combine(step.alpha))
        candidate = accuracies(problem.classifier, problem.calibration_data, config.batch_size)
        signal = weigh(candidate, state.accuracy, config)
        if not signal.accepted:
            problem.space.restore(before)
        observer.stage("measure", 1, 1)
    kept = candidate if signal.accepted else state.accuracy
    record = IterationRecord(
        iteration=state.iteration + 1,
        phase=state.iteration // config.iterations + 1,
        accepted=signal.accepted,
        eigenvalues=spectrum.eigenvalues.tolist(),
        residuals=spectrum.residuals.tolist(),
        products=spectrum.steps,
        alpha=step.alpha.tolist(),
        alpha_max=controller.value,
        predicted=step.predicted.tolist(),
        candidate_sigma=signal.sigma_after,
        max_drop=signal.max_drop,
        sigma=sigma(kept),
        accuracy=problem.overall(kept),
        worst=float(kept.min()),
        per_class=kept.tolist(),
        sensitivity=matrix.tolist(),
        seconds=seconds,
        deflation=deflation,
    )
    following = _advance(problem, state, kept, controller.update(signal))
    return _next_phase(problem, following, spectrum), record


def curvature(problem: Problem, iteration: int) -> Hessian:
    """The Hessian at the present weights."""
    config = problem.config
    batch = hessian_batch(
        problem.training_data,
        config.hessian_samples,
        config.hessian_sampling,
        config.seed,
        iteration,
    ).resident(problem.space.device)
    return Hessian(problem.classifier, batch, problem.space, problem.loss, config.micro_batch)


def find_spikes(
    problem: Problem, operator: Operator, iteration: int, observer: Observer, deflated: Tensor | None = None
) -> Spectrum:
    """The K leading spikes, beyond those that earlier phases have dealt with."""
    config = problem.config
    spectrum = lanczos(
        operator if deflated is None else Deflated(operator, deflated),
        problem.spikes,
        steps=config.lanczos_steps,
        tolerance=config.tolerance,
        storage=problem.storage,
        seed=config.seed,
        iteration=iteration,
        progress=lambda done, total: observer.stage("lanczos", done, total),
    )
    if len(spectrum) == 0:
        raise NoSpikes("training_data: the Hessian has no positive eigenvalue here, so there is no spike to move along")
    return spectrum


def find_sensitivity(problem: Problem, spectrum: Spectrum, epsilon: float, observer: Observer) -> Array:
    """S (K, C) at the present weights for a probe of amplitude ε, as the config says, fractions per unit of amplitude.

    A gradient takes no more images at a time than a Hessian product did, whose graph had room.
    """
    config = problem.config
    gradients = config.sensitivity == "gradients"
    together = min(config.batch_size, config.micro_batch or config.hessian_samples)
    return (gradient_sensitivity if gradients else sensitivity)(
        problem.classifier,
        spectrum,
        problem.calibration_data,
        epsilon,
        batch_size=together if gradients else config.batch_size,
        progress=lambda done, total: observer.stage("sensitivity", done, total),
    )


def make_plan(problem: Problem, accuracy: Array, spectrum: Spectrum, matrix: Array, budget: float) -> Plan:
    """Eq. 5 with the config's bound and protection."""
    config = problem.config
    floor = strong_floor(
        accuracy,
        reference=problem.base if config.reference == "start" else accuracy,
        threshold=config.strong_above,
        allowed_drop=problem.max_drop,
    )
    values = spectrum.eigenvalues
    # With fixed steps, as in the paper, every positive Ritz value counts for the box; otherwise only converged ones.
    counted = values if config.lanczos_steps else values[spectrum.converged]
    return plan(
        matrix,
        accuracy,
        budget,
        problem.exponent,
        floor=floor,
        bound=config.bound,
        eigenvalues=np.maximum(values, counted.min(initial=values.max())),
    )


def weigh(candidate: Array, previous: Array, config: SurgeryConfig) -> Signal:
    """Accept a candidate, or roll it back for a rise of σ or a drop of a class beyond the config's limits."""
    old, new = sigma(previous), sigma(candidate)
    max_drop = float((previous - candidate).max())
    accepted = new <= old + config.rollback_sigma and max_drop <= config.rollback_drop
    return Signal(accepted, old, new, max_drop)


def score(per_class: Array, target: Target) -> tuple[float, float]:
    """What the best iterate is chosen by; higher is better, ties by the second number."""
    spread, worst = -sigma(per_class), float(per_class.min())
    return (spread, worst) if target == "sigma" else (worst, spread)


def _advance(problem: Problem, state: State, kept: Array, controller: Controller) -> State:
    target = problem.config.target
    following = replace(state, iteration=state.iteration + 1, accuracy=kept, controller=controller)
    if score(kept, target) > score(state.best_accuracy, target):
        return replace(following, best_accuracy=kept, best_weights=problem.space.snapshot(), idle=0)
    return replace(following, idle=state.idle + 1)


def _next_phase(problem: Problem, state: State, spectrum: Spectrum) -> State:
    """The state that the next iteration starts from: at the end of a phase, with its spikes deflated."""
    if state.first_eigenvalue is None:
        state = replace(state, first_eigenvalue=float(spectrum.eigenvalues[0]))
    config = problem.config
    if state.iteration % config.iterations or state.iteration == config.rounds:
        return state
    return replace(state, controller=None, deflated=accumulate(state.deflated, spectrum), idle=0)


def _seek(problem: Problem, state: State, observer: Observer) -> tuple[Spectrum, dict[str, float] | None]:
    """The spikes at the present weights and what deflation came to; the operator's graph is freed on return."""
    operator = curvature(problem, state.iteration + 1)
    spectrum = find_spikes(problem, operator, state.iteration + 1, observer, state.deflated)
    return spectrum, _check_deflation(problem, state, operator, spectrum)


def _check_deflation(problem: Problem, state: State, operator: Operator, spectrum: Spectrum) -> dict[str, float] | None:
    """How well the earlier phases' spikes are out of the way; how stale they are, when a phase begins."""
    if state.deflated is None:
        return None
    found = {"vectors": float(len(state.deflated)), "overlap": overlap(state.deflated, spectrum)}
    if state.iteration % problem.config.iterations == 0:
        found["stale"] = staleness(operator, state.deflated, problem.spikes)
    return found


def _first_controller(problem: Problem, state: State, spectrum: Spectrum) -> Controller:
    """The control at the start of a phase; its amplitude goes as 1/√λ_max from phase to phase (eq. 10)."""
    config, leading = problem.config, float(spectrum.eigenvalues[0])
    if state.deflated is not None and leading < 1e-6 * (state.first_eigenvalue or leading):
        raise NoSpikes(f"phases: after {len(state.deflated)} spikes the curvature left is rounding ({leading:.2g})")
    if config.amplitude is None:
        amplitude = curvature_amplitude(leading)
    else:
        amplitude = config.amplitude * math.sqrt((state.first_eigenvalue or leading) / leading)
    return start_control(config.control, amplitude, config.iterations, sigma(state.accuracy))


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Note how long a block takes."""
    start = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - start
