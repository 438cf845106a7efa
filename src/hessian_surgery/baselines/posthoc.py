"""The post-hoc baselines: each offers edits of the model, made from its calibration images.

A method that has something to fit is fitted to the same goal as the default operation, within the
same limits, and its edit is chosen by the same cross-fitting. The others try a list of values, and
choose among them in the same way. Doing nothing is always on offer.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.baselines.last_layer import refit
from hessian_surgery.baselines.model_edits import ChainState, Edit, LogitMap, WeightStep
from hessian_surgery.baselines.outputs import ModelOutputs
from hessian_surgery.data.checks import require_images
from hessian_surgery.directions.family import Directions, join
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.accuracies import Rates, answer_rates, logit_unit
from hessian_surgery.evidence.class_noise import class_noise
from hessian_surgery.operation.choice import Chosen, make_candidates
from hessian_surgery.operation.crossfit import AfterCoefficients, PredictedStep
from hessian_surgery.operation.expected_gain import calibrated
from hessian_surgery.operation.goal import Goal
from hessian_surgery.operation.ladder import climb, prior_shift
from hessian_surgery.operation.surrogate import Surrogate, bias_maps, logit_maps
from hessian_surgery.types import Array

TAUS = tuple(np.arange(0, 2.01, 0.25))
FINE_TAUS = tuple(np.round(np.arange(0, 2.01, 0.05), 2))
TEMPERATURES = (0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Candidate:
    """An edit that a method offers.

    Attributes:
        edit: the edit.
        rates: its rates on the calibration images; if it was fitted, on those of other folds.
    """

    edit: Edit
    rates: Rates


@dataclass(frozen=True)
class BestOf:
    """The offer that chooses from a list of candidates; the first one does nothing.

    Attributes:
        candidates: the list.
        choose: the least accuracy → the chosen step, whose coefficient is a place in the list.
    """

    candidates: Sequence[Candidate]
    choose: Callable[[float], Chosen]

    def __call__(self, floor: float) -> Candidate:
        """The best candidate within the goal's limits whose accuracy is not below the floor."""
        return self.candidates[int(self.choose(floor).step.coefficients[0])]


# The least accuracy on the calibration images → the best candidate, which may be doing nothing.
Offer = Callable[[float], Candidate]
# Outputs, the state to start from, positions of the calibration images, the goal → its offer. The
# goal's limits are against the original model; its floor plays no part.
PosthocMethod = Callable[[ModelOutputs, ChainState, Tensor, Goal], Offer]


def temperature(outputs: ModelOutputs, state: ChainState, calibration: Tensor, goal: Goal) -> Offer:
    """Temperature scaling: z / T. No prediction changes: a control that must show no effect."""
    edits = [_map(outputs, scale=torch.full((outputs.logits.shape[1],), 1 / t)) for t in TEMPERATURES]
    return _map_candidates(outputs, state, calibration, goal, edits)


def logit_adjustment(outputs: ModelOutputs, state: ChainState, calibration: Tensor, goal: Goal) -> Offer:
    """z − τ log π, with the training set's class shares π (Menon et al. 2021), at several τ.

    It acts on logits, not on probabilities.
    """
    if outputs.training_counts is None:
        raise InputError("logit adjustment needs the training set's class counts (training_counts)")
    if (outputs.training_counts <= 0).any():
        raise InputError("logit adjustment: a class has no training image, so its share is 0")
    shift = prior_shift(outputs.training_counts, outputs.logits.shape[1])
    edits = [_map(outputs, shift=tau * shift) for tau in FINE_TAUS]
    return _map_candidates(outputs, state, calibration, goal, edits)


def tau_norm(outputs: ModelOutputs, state: ChainState, calibration: Tensor, goal: Goal) -> Offer:
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
    return _map_candidates(outputs, state, calibration, goal, edits)


def class_bias(outputs: ModelOutputs, state: ChainState, calibration: Tensor, goal: Goal) -> Offer:
    """One number per class, added to its logit."""
    surrogate = bias_maps(state.logits[calibration], outputs.labels[calibration], len(outputs.classes))
    assert surrogate.shifts is not None  # it has nothing else
    unit = surrogate.shifts.double().cpu()

    def edit(coefficients: Array) -> LogitMap:
        return _map(outputs, shift=unit * torch.from_numpy(coefficients))

    return _offer(outputs, surrogate, goal, edit)


def vector_scaling(outputs: ModelOutputs, state: ChainState, calibration: Tensor, goal: Goal) -> Offer:
    """A scale and a bias per class (Guo et al. 2017)."""
    logits = state.logits[calibration]
    width = logits.shape[1]
    # As for directions, a coefficient of 1 moves all logits by `logit_unit`, root mean square.
    unit = logit_unit(logits) * math.sqrt(width)
    factor = unit / max(float(logits.square().mean().sqrt()), 1e-6)

    def edit(coefficients: Array) -> LogitMap:
        scale, shift = torch.from_numpy(coefficients).split(width)
        return _map(outputs, 1 + factor * scale, unit * shift)

    units = torch.ones_like(logits[0])
    labels = outputs.labels[calibration]
    surrogate = logit_maps(logits, labels, len(outputs.classes), unit * units, factor * units)
    return _offer(outputs, surrogate, goal, edit)


def last_layer(outputs: ModelOutputs, state: ChainState, calibration: Tensor, goal: Goal) -> Offer:
    """The head fitted again by class-balanced logistic regression (Kang et al. 2020)."""
    if outputs.head is None or outputs.features is None:
        raise InputError("a refit of the last layer needs a linear head, which this model does not have")
    found = refit(outputs.head, outputs.features[calibration], outputs.labels[calibration], len(outputs.classes))
    return _best_of(outputs, calibration, goal, found)


def step_along(family: str, count: int | None = None) -> PosthocMethod:
    """Make the method that takes one step along the first `count` directions of a family.

    Without `count`, `ModelOutputs.default_counts` says how many directions there are.
    """

    def method(outputs: ModelOutputs, state: ChainState, calibration: Tensor, goal: Goal) -> Offer:
        directions = outputs.family(family)
        linear = _surrogate(directions, outputs, state, calibration, count or outputs.default_counts.get(family))
        unused = len(directions) - linear.size

        def edit(coefficients: Array) -> WeightStep:
            return WeightStep(directions, np.pad(coefficients, (0, unused)))

        seen = replace(goal, noise=linear.noise())
        found = climb(linear, seen, _look(outputs, state, calibration, edit))
        return partial(_choose, found.chooser(seen), edit)

    return method


def operation_step(family: str) -> PosthocMethod:
    """Make the method that takes a step like the default operation's.

    It moves along the head's biases and a family, but not along gradients of the calibration
    images.
    """

    def method(outputs: ModelOutputs, state: ChainState, calibration: Tensor, goal: Goal) -> Offer:
        families = [outputs.family(family)]
        directions = join(families if outputs.bias is None else [outputs.bias, *families])
        surrogate = _surrogate(directions, outputs, state, calibration)
        require_images(surrogate.labels, outputs.classes, "one-step", at_least=2)
        seen = replace(goal, noise=surrogate.noise())

        def edit(coefficients: Array) -> WeightStep:
            return WeightStep(directions, coefficients)

        look = _look(outputs, state, calibration, edit)
        found = climb(surrogate, seen, look, training_counts=outputs.training_counts)
        return partial(_choose, found.chooser(seen), edit)

    return method


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
    outputs: ModelOutputs, state: ChainState, calibration: Tensor, goal: Goal, maps: Sequence[LogitMap]
) -> Offer:
    logits = state.logits[calibration]
    return _best_of(outputs, calibration, goal, ((edit, edit(logits)) for edit in maps))


def _best_of(outputs: ModelOutputs, calibration: Tensor, goal: Goal, edits: Iterable[tuple[Edit, Tensor]]) -> BestOf:
    """The offer of edits with the logits (n, C) of each, chosen as the operation chooses.

    Logits are not kept: with many classes those of all edits would take gigabytes.
    """
    labels = outputs.labels[calibration].cpu()
    classes = len(outputs.classes)
    candidates: list[Candidate] = []
    steps: list[PredictedStep] = []
    probabilities = None
    for i, (edit, logits) in enumerate(edits):
        answers = logits.argmax(dim=1).cpu()
        steps.append(PredictedStep(np.array([i]), answer_rates(answers, labels, classes), answers))
        candidates.append(Candidate(edit, steps[-1].rates))
        probabilities = calibrated(logits, labels) if probabilities is None else probabilities
    noise = class_noise(steps[0].rates.per_class, torch.bincount(labels, minlength=classes).numpy())
    found = make_candidates([steps[:1], steps[1:]], labels, classes, probabilities=probabilities)
    return BestOf(candidates, found.chooser(replace(goal, noise=noise)))


def _offer(outputs: ModelOutputs, surrogate: Surrogate, goal: Goal, edit: Callable[[Array], LogitMap]) -> Offer:
    """The offer of a method whose coefficients each change one logit of every image."""
    require_images(surrogate.labels, outputs.classes, "calibration data", at_least=2)
    seen = replace(goal, noise=surrogate.noise())
    return partial(_choose, climb(surrogate, seen).chooser(seen), edit)


def _choose(choose: Callable[[float], Chosen], edit: Callable[[Array], Edit], floor: float) -> Candidate:
    """The candidate for a floor, as the default operation chooses it."""
    step = choose(floor).step
    return Candidate(edit(step.coefficients), step.rates)


def _look(
    outputs: ModelOutputs, state: ChainState, calibration: Tensor, edit: Callable[[Array], WeightStep]
) -> AfterCoefficients:
    """How the logits of calibration images after a step are measured."""
    return lambda coefficients, positions: state.logits_after(
        edit(coefficients), outputs, calibration.to(positions.device)[positions]
    )


def _surrogate(
    directions: Directions, outputs: ModelOutputs, state: ChainState, calibration: Tensor, count: int | None = None
) -> Surrogate:
    """Make the calibration logits a linear function of the first `count` coefficients.

    Its tensors are on the device that holds the directions' logit changes.
    """
    device = directions.changes.device
    scale = state.scale.to(device)
    kept = directions.outputs.to(device)[calibration.to(device)]
    return Surrogate(
        logits=state.logits[calibration].to(device),
        labels=outputs.labels[calibration].to(device),
        classes=len(outputs.classes),
        outputs=kept,
        changes=directions.changes[:count, calibration.to(device)] * scale[kept],
        shifts=directions.bias_unit * scale if directions.bias_unit else None,
    )
