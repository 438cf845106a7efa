"""The post-hoc baselines: each makes candidate edits of the model from its calibration images.

A method that has something to fit is fitted to the same objective: σ of the class accuracies at a
price of accuracy. The others try a list of values. Doing nothing is always a candidate.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.baselines.choice import unbeaten
from hessian_surgery.baselines.last_layer import refit
from hessian_surgery.baselines.model_edits import ChainState, Edit, LogitMap, WeightStep
from hessian_surgery.baselines.outputs import ModelOutputs
from hessian_surgery.data.checks import require_images
from hessian_surgery.directions.family import Directions, join
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.accuracies import Rates, logit_unit, rates
from hessian_surgery.operation.coefficient_fit import candidates, fit_path
from hessian_surgery.operation.crossfit import CandidateSteps, Surrogate
from hessian_surgery.operation.goal import make_goal
from hessian_surgery.operation.protection import default_max_drop, default_threshold
from hessian_surgery.types import Array

TAUS = tuple(np.arange(0, 2.01, 0.25))
FINE_TAUS = tuple(np.round(np.arange(0, 2.01, 0.05), 2))
TEMPERATURES = (0.25, 0.5, 1.0, 2.0, 4.0)
# Of the steps that a fit predicts, how many are measured.
MEASURED = 8
# How far below the accuracy floor a step may be predicted to end and still be measured.
MARGIN = 0.02
# Budgets, from 0 to the largest, that `operation_step` makes a step for.
PLANS = 11


@dataclass(frozen=True)
class Candidate:
    """An edit that a method offers.

    Attributes:
        edit: the edit.
        rates: its rates on the calibration images.
        state: the state after it, if a forward pass measured it. A state that is cheap to compute
            again is not kept: there are hundreds of candidates.
    """

    edit: Edit
    rates: Rates
    state: ChainState | None = None


# Outputs, the state to start from, positions of the calibration images → candidates.
PosthocMethod = Callable[[ModelOutputs, ChainState, Tensor], list[Candidate]]


def temperature(outputs: ModelOutputs, state: ChainState, calibration: Tensor) -> list[Candidate]:
    """Temperature scaling: z / T. No prediction changes: a control that must show no effect."""
    edits = [_map(outputs, scale=torch.full((outputs.logits.shape[1],), 1 / t)) for t in TEMPERATURES]
    return _map_candidates(outputs, state, calibration, edits)


def logit_adjustment(outputs: ModelOutputs, state: ChainState, calibration: Tensor) -> list[Candidate]:
    """z − τ log π, with the training set's class shares π (Menon et al. 2021), at several τ.

    It acts on logits, not on probabilities.
    """
    if outputs.training_counts is None:
        raise InputError("logit adjustment needs the training set's class counts (training_counts)")
    counts = outputs.training_counts.double()
    if (counts <= 0).any():
        raise InputError("logit adjustment: a class has no training image, so its share is 0")
    known = -(counts / counts.sum()).log().cpu()
    # An output beyond the classes moves like the most frequent class: equal shares change nothing.
    shift = torch.full((outputs.logits.shape[1],), float(known.min()), dtype=torch.float64)
    shift[: len(counts)] = known
    return _map_candidates(outputs, state, calibration, [_map(outputs, shift=tau * shift) for tau in FINE_TAUS])


def tau_norm(outputs: ModelOutputs, state: ChainState, calibration: Tensor) -> list[Candidate]:
    """w_c ← w_c / ‖w_c‖^τ (Kang et al. 2020) at several τ, with the head's bias and without.

    Lengths are in units of their geometric mean: the logits keep their size.
    """
    if outputs.head is None:
        raise InputError("τ-normalization needs a linear head, which this model does not have")
    weight = outputs.head.module.weight.detach().double().cpu()
    bias = outputs.head.module.bias
    kept = torch.zeros(len(weight), dtype=torch.float64) if bias is None else bias.detach().double().cpu()
    size = weight.norm(dim=1)
    size = size / size.log().mean().exp()
    edits: list[LogitMap] = []
    for tau in TAUS:
        scale = size**-tau
        edits += [_map(outputs, scale=scale, shift=share * kept - scale * kept) for share in (1.0, 0.0)]
    return _map_candidates(outputs, state, calibration, edits)


def class_bias(outputs: ModelOutputs, state: ChainState, calibration: Tensor) -> list[Candidate]:
    """One number per class, added to its logit."""
    logits = state.logits[calibration]
    labels = outputs.labels[calibration]
    unit = logit_unit(logits)
    path = fit_path(lambda c: logits + unit * c, logits.shape[1], labels, len(outputs.classes))
    edits = [_map(outputs, shift=unit * torch.from_numpy(c)) for c in candidates(path)]
    return _map_candidates(outputs, state, calibration, edits)


def vector_scaling(outputs: ModelOutputs, state: ChainState, calibration: Tensor) -> list[Candidate]:
    """A scale and a bias per class (Guo et al. 2017)."""
    logits = state.logits[calibration]
    labels = outputs.labels[calibration]
    width = logits.shape[1]
    unit = logit_unit(logits)

    def at(c: Tensor) -> Tensor:
        return logits * (1 + c[:width]) + unit * c[width:]

    path = fit_path(at, 2 * width, labels, len(outputs.classes))
    pairs = [torch.from_numpy(c).split(width) for c in candidates(path)]
    edits = [_map(outputs, 1 + scale, unit * shift) for scale, shift in pairs]
    return _map_candidates(outputs, state, calibration, edits)


def last_layer(outputs: ModelOutputs, state: ChainState, calibration: Tensor) -> list[Candidate]:
    """The head fitted again by class-balanced logistic regression (Kang et al. 2020)."""
    if outputs.head is None or outputs.features is None:
        raise InputError("a refit of the last layer needs a linear head, which this model does not have")
    found = refit(outputs.head, outputs.features[calibration], outputs.labels[calibration], len(outputs.classes))
    return [Candidate(edit, _rates(outputs, logits, calibration)) for edit, logits in found]


def step_along(family: str, count: int | None = None) -> PosthocMethod:
    """Make the method that takes one step along the first `count` directions of a family.

    The step is fitted to the directions' linear changes of the logits, which also predict its
    rates. Forward passes then measure the steps that look best; these are the candidates. Without
    `count`, `ModelOutputs.default_counts` says how many directions there are.
    """

    def method(outputs: ModelOutputs, state: ChainState, calibration: Tensor) -> list[Candidate]:
        directions = outputs.family(family)
        linear = _surrogate(directions, outputs, state, calibration, count or outputs.default_counts.get(family))
        size = len(linear.changes)
        unused = len(directions) - size
        steps = candidates(fit_path(linear.at, size, linear.labels, linear.classes))
        predicted = [_rates(outputs, linear.at(torch.from_numpy(c).to(linear.changes)), calibration) for c in steps]
        kept = [np.pad(steps[i], (0, unused)) for i in promising(predicted, outputs.largest_budget)]
        edits = [WeightStep(directions, c) for c in kept]
        states = [state.after(edit, outputs) for edit in edits]
        measured = [_rates(outputs, after.logits[calibration], calibration) for after in states]
        return [Candidate(*found) for found in zip(edits, measured, states, strict=True)]

    return method


def operation_step(family: str) -> PosthocMethod:
    """Make the method that takes the step of the default operation's first iteration.

    It moves along the head's biases and a family, and is chosen by cross-fitting. A candidate's
    rates are predicted on images that it was not fitted to, so a budget also holds on new images.
    There is one candidate for each of `PLANS` budgets.
    """

    def method(outputs: ModelOutputs, state: ChainState, calibration: Tensor) -> list[Candidate]:
        families = [outputs.family(family)]
        directions = join(families if outputs.bias is None else [outputs.bias, *families])
        surrogate = _surrogate(directions, outputs, state, calibration)
        present = surrogate.rates()
        count = np.bincount(surrogate.labels.cpu().numpy(), minlength=surrogate.classes)
        require_images(surrogate.labels, outputs.classes, "one-step", at_least=2)
        strong = present.per_class > default_threshold(present.per_class)
        drop = default_max_drop(present.per_class, count)
        goal = make_goal(present, outputs.classes, protected=strong, max_drop=drop)

        def look(coefficients: Array, positions: Tensor) -> Tensor:
            step = WeightStep(directions, coefficients)
            return state.logits_after(step, outputs, calibration.to(positions.device)[positions])

        candidate_steps = CandidateSteps(surrogate, goal, directions.exact, look)
        floors = present.accuracy - np.linspace(0, outputs.largest_budget, PLANS)
        plans = [candidate_steps.nothing, *(candidate_steps.choose(replace(goal, floor=floor)) for floor in floors)]
        return [Candidate(WeightStep(directions, plan.coefficients), plan.rates) for plan in plans]

    return method


def promising(predicted: list[Rates], largest_budget: float) -> list[int]:
    """Return which candidates are worth a forward pass.

    These are the first, which does nothing, and at most `MEASURED` others. No candidate beats
    those in both accuracy and σ, and they give up little more accuracy than `largest_budget`.
    """
    floor = predicted[0].accuracy - largest_budget - MARGIN
    points = np.array([(rate.accuracy, rate.sigma) for rate in predicted])
    front = [i for i in unbeaten(*points.T) if predicted[i].accuracy >= floor]
    picked = np.linspace(0, len(front) - 1, min(len(front), MEASURED)).round().astype(int)
    return list(dict.fromkeys([0, *(front[i] for i in picked)]))


POSTHOC: dict[str, PosthocMethod] = {
    "temperature": temperature,
    "logit-adjustment": logit_adjustment,
    "tau-norm": tau_norm,
    "class-bias": class_bias,
    "vector-scaling": vector_scaling,
    "last-layer": last_layer,
    "random": step_along("random"),
    "class-gradients": step_along("class-gradients"),
    "spikes": step_along("spikes"),
    "one-step": operation_step("class-gradients"),
    "one-step:spikes": operation_step("spikes"),
}
# Methods that need nothing but logits.
FROM_LOGITS = ("nothing", "temperature", "logit-adjustment", "class-bias", "vector-scaling")


def _map(outputs: ModelOutputs, scale: Tensor | None = None, shift: Tensor | None = None) -> LogitMap:
    width = outputs.logits.shape[1]
    device = outputs.logits.device
    scale = torch.ones(width) if scale is None else scale
    shift = torch.zeros(width) if shift is None else shift
    return LogitMap(scale.float().to(device), shift.float().to(device))


def _map_candidates(
    outputs: ModelOutputs, state: ChainState, calibration: Tensor, maps: Sequence[LogitMap]
) -> list[Candidate]:
    logits = state.logits[calibration]
    return [Candidate(edit, _rates(outputs, edit(logits), calibration)) for edit in maps]


def _surrogate(
    directions: Directions, outputs: ModelOutputs, state: ChainState, calibration: Tensor, count: int | None = None
) -> Surrogate:
    """Make the calibration logits a linear function of the first `count` coefficients.

    Its tensors are on the device that holds the directions' logit changes.
    """
    device = directions.changes.device
    changes = directions.changes[:count, calibration.to(device)] * state.scale.to(device)
    labels = outputs.labels[calibration].to(device)
    return Surrogate(state.logits[calibration].to(device), changes, labels, len(outputs.classes))


def _rates(outputs: ModelOutputs, logits: Tensor, calibration: Tensor) -> Rates:
    return rates(logits, outputs.labels[calibration], len(outputs.classes))
