"""The loop (Algorithm 2): spikes, sensitivity, plan, step; accept or roll back; adapt the amplitude; again."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from hessian_surgery.classifier import Classifier
from hessian_surgery.curvature.lanczos import Spectrum, lanczos
from hessian_surgery.curvature.operators import Hessian
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.splits import hessian_batch
from hessian_surgery.errors import InputError
from hessian_surgery.losses import LOSSES
from hessian_surgery.metrics import Array, sigma
from hessian_surgery.parameters import ParameterSpace, Snapshot
from hessian_surgery.surgery.amplitude import Controller, Signal, curvature_amplitude, start_control
from hessian_surgery.surgery.config import SurgeryConfig
from hessian_surgery.surgery.planning import Plan, Target, plan, recommended_exponent, strong_floor
from hessian_surgery.surgery.sensitivity import accuracies, sensitivity


class Observer:
    """Told what the operation is doing; this one does nothing."""

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
        hessian_data: what Hessian batches are drawn from.
        sensitivity_data: the images that S and every decision are measured on.
        config: the choices.
        base: class accuracies (C,) of the starting model on the sensitivity data.
    """

    classifier: Classifier
    space: ParameterSpace
    hessian_data: LabelledSet
    sensitivity_data: LabelledSet
    config: SurgeryConfig
    base: Array

    @property
    def exponent(self) -> float:
        """p, from the config or from the p-rule at the starting model."""
        config, count = self.config, self.sensitivity_data.counts.numpy().astype(np.float64)
        if config.exponent == "auto":
            return recommended_exponent(self.base, count, config.target)
        return config.exponent

    @property
    def spikes(self) -> int:
        """K: from the config, or C − 1."""
        return self.config.spikes or max(1, len(self.sensitivity_data.classes) - 1)

    def overall(self, per_class: Array) -> float:
        """Accuracy over all sensitivity images from class accuracies (C,)."""
        count = self.sensitivity_data.counts.numpy()
        return float(per_class @ count / count.sum())


@dataclass(frozen=True)
class IterationRecord:
    """One line of `history.jsonl`. Accuracies are on the sensitivity data, after acceptance or rollback."""

    iteration: int
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
    """

    iteration: int
    accuracy: Array
    controller: Controller | None
    best_accuracy: Array
    best_weights: Snapshot
    idle: int = 0


def run_loop(problem: Problem, observer: Observer) -> list[IterationRecord]:
    """Iterate until T or until patience runs out; leave the returned iterate's weights in the module."""
    config = problem.config
    state = State(0, problem.base, None, problem.base, problem.space.snapshot())
    records = []
    while state.iteration < config.iterations and (config.patience is None or state.idle < config.patience):
        state, record = iterate(problem, state, observer)
        records.append(record)
        observer.iteration(record)
    if config.returned == "best":
        problem.space.restore(state.best_weights)
    return records


def iterate(problem: Problem, state: State, observer: Observer) -> tuple[State, IterationRecord]:
    """One iteration of Algorithm 2."""
    config, seconds = problem.config, dict[str, float]()
    with _timed(seconds, "lanczos"):
        spectrum = find_spikes(problem, state.iteration + 1, observer)
    controller = state.controller or _first_controller(problem, spectrum)
    with _timed(seconds, "sensitivity"):
        matrix = sensitivity(
            problem.classifier,
            spectrum,
            problem.sensitivity_data,
            epsilon=controller.value,
            batch_size=config.batch_size,
            progress=lambda done, total: observer.stage("sensitivity", done, total),
        )
    with _timed(seconds, "plan"):
        step = make_plan(problem, state.accuracy, spectrum, matrix, controller.value)
    with _timed(seconds, "measure"):
        before = problem.space.snapshot()
        problem.space.perturb(combine(spectrum, step))
        candidate = accuracies(problem.classifier, problem.sensitivity_data, config.batch_size)
        signal = weigh(candidate, state.accuracy, config)
        if not signal.accepted:
            problem.space.restore(before)
        observer.stage("measure", 1, 1)
    kept = candidate if signal.accepted else state.accuracy
    record = IterationRecord(
        iteration=state.iteration + 1,
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
    )
    return _advance(problem, state, kept, controller.update(signal)), record


def find_spikes(problem: Problem, iteration: int, observer: Observer) -> Spectrum:
    """The K leading spikes of the Hessian at the present weights."""
    config = problem.config
    batch = hessian_batch(
        problem.hessian_data,
        config.hessian_samples,
        config.hessian_sampling,
        config.seed,
        iteration if config.redraw_hessian else 0,
    )
    loss = LOSSES[config.loss]
    spectrum = lanczos(
        Hessian(problem.classifier, batch, problem.space, loss, config.micro_batch),
        problem.spikes,
        steps=config.lanczos_steps,
        tolerance=config.tolerance,
        seed=config.seed,
        iteration=iteration,
        progress=lambda done, total: observer.stage("lanczos", done, total),
    )
    if len(spectrum) == 0:
        raise InputError(
            "hessian_data: the Hessian has no positive eigenvalue here, so there is no spike to move along"
        )
    return spectrum


def make_plan(problem: Problem, accuracy: Array, spectrum: Spectrum, matrix: Array, budget: float) -> Plan:
    """Eq. 5 with the config's bound and protection."""
    config = problem.config
    floor = strong_floor(
        accuracy,
        reference=problem.base if config.reference == "start" else accuracy,
        threshold=config.strong_above,
        allowed_drop=config.allowed_drop,
    )
    return plan(
        matrix,
        accuracy,
        budget,
        problem.exponent,
        floor=floor,
        bound=config.bound,
        eigenvalues=spectrum.eigenvalues,
    )


def combine(spectrum: Spectrum, step: Plan) -> Tensor:
    """δθ = Σ_i α_i q_i, (p,)."""
    vectors = spectrum.vectors
    return vectors.T @ vectors.new_tensor(step.alpha)


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


def _first_controller(problem: Problem, spectrum: Spectrum) -> Controller:
    config = problem.config
    amplitude = config.amplitude or curvature_amplitude(float(spectrum.eigenvalues[0]))
    return start_control(config.control, amplitude, config.iterations, sigma(problem.base))


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - start
