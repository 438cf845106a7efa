"""The directions of an iteration: what the config asks for, at the present weights."""

from functools import partial
from itertools import count

import numpy as np
from torch import Tensor

from hessian_surgery.curvature.lanczos import Spectrum
from hessian_surgery.directions.biases import bias_directions
from hessian_surgery.directions.calibration_gradients import calibration_gradients, gradient_rows
from hessian_surgery.directions.class_gradients import class_gradients
from hessian_surgery.directions.class_groups import find_groups
from hessian_surgery.directions.family import Directions, Probe, join
from hessian_surgery.directions.moving import moving_images
from hessian_surgery.directions.refit import FITS, Refit, refit_directions, refittable
from hessian_surgery.directions.spikes import spike_directions
from hessian_surgery.model.head import find_head_on
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.operation.ladder import Origin
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.problem import Problem

# How far steps that start from a refitted head go towards it, as a share.
PART_OF_THE_WAY = 0.35


def find_spikes(problem: Problem[SurgeryConfig], iteration: int, observer: Observer) -> Spectrum | None:
    """The spikes at the present weights, if they are asked for."""
    if problem.finder is None:
        return None
    observer.stage("spikes", 0, 1)
    return problem.finder.find(iteration=iteration, progress=partial(observer.stage, "spikes"))


def find_directions(
    problem: Problem[SurgeryConfig], logits: Tensor, spikes: Spectrum | None, observer: Observer, iteration: int = 1
) -> tuple[Directions, Origin | None]:
    """What the config asks for at the present weights: biases, class gradients, spikes, a refit.

    Returns:
        The directions, and the part of the way to the refitted head that steps may start from.
    """
    config = problem.config
    data = problem.calibration_data
    done = count(1)
    head = find_head_on(problem.classifier, data)
    # After a first iteration the head has been fitted to every calibration image.
    again = refittable(head, problem.space) if config.uses_refit and iteration == 1 else None
    units = _direction_units(problem, spikes, again is not None)
    observer.stage("directions", 0, units)
    probe = Probe(
        problem.classifier,
        problem.space,
        data,
        logits,
        problem.batch_size,
        lambda *_: observer.stage("directions", next(done), units),
        moving_images(logits),
    )
    bias = bias_directions(probe, head)
    families = [] if bias is None else [bias]
    if problem.gradient_data is not None:
        groups = find_groups(probe, config.alone)
        families.append(class_gradients(probe, problem.gradient_data, config.seed, groups))
        crossed = calibration_gradients(probe, config.seed, groups)
        families += [] if crossed is None else [crossed]
    if spikes is not None:
        families.append(spike_directions(probe, spikes))
    if again is None:
        return join(families), None
    refit = refit_directions(probe, again, config.seed)
    directions = join([*families, refit.directions])
    return directions, _part_of_the_way(refit, logits, directions)


def _part_of_the_way(refit: Refit, logits: Tensor, directions: Directions) -> Origin:
    """The step towards the refitted head, which is the last direction, from the present logits."""
    coefficients = np.zeros(len(directions))
    coefficients[-1] = PART_OF_THE_WAY * refit.length
    # The linear model is where the changes are.
    there = logits.to(directions.changes.device)
    return Origin(coefficients, there + (PART_OF_THE_WAY * refit.changes).to(there))


def _direction_units(problem: Problem[SurgeryConfig], spikes: Spectrum | None, refit: bool) -> int:
    """How often progress is told while directions are found: for each gradient, slope and fit.

    Both halves of the calibration images have gradients, and a fit of the head; they share a slope.
    """
    rows = gradient_rows(problem.calibration_data.counts, len(problem.config.alone))
    gradients = 0 if problem.gradient_data is None else sum(rows) + sum(rows[:2])
    refits = FITS + 1 if refit else 0
    return max(1, gradients + (0 if spikes is None else len(spikes)) + refits)
