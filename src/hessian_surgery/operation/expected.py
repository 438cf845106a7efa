"""What an operation is expected to do, stage by stage: the figures of `--dry-run`, in order."""

from collections.abc import Mapping
from typing import Any

from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.operation.cost import estimate_cost, try_operation
from hessian_surgery.operation.minimize import EVALUATIONS
from hessian_surgery.operation.problem import Inputs
from hessian_surgery.operation.schedule import Expected
from hessian_surgery.operation.stage_seconds import FITS
from hessian_surgery.operation.trial import try_passes

# Stages that an operation has once, before and after its iterations.
ONCE = ("prepare", "report")


def expected_operation(
    inputs: Inputs[Any], training: LabelledSet, heldout: LabelledSet | None, folds: int | None, front: bool
) -> list[Expected]:
    """The stages of `operate`, timed by a short trial.

    Args:
        inputs: what is operated on.
        training: the training images.
        heldout: the held-out images; None with folds.
        folds: how many; None with held-out images.
        front: whether other budgets and objectives are predicted too.
    """
    classifier, data, config = inputs.classifier, inputs.calibration_data, inputs.config
    trial = try_operation(classifier, data, config)
    cost = estimate_cost(classifier, training, data, config, folds, heldout, trial, front=front)
    seconds = {stage.name: stage.seconds or 0.0 for stage in cost.stages}
    return in_order(seconds, config.total_iterations, folds)


def expected_diagnosis(inputs: Inputs[Any], training: LabelledSet) -> list[Expected]:
    """The stages of `diagnose`, timed by a short trial; spikes are sought if there is a finder."""
    classifier, data, config = inputs.classifier, inputs.calibration_data, inputs.config
    trial = try_passes(classifier, inputs.space, data, 0, config.batch_size)
    cost = estimate_cost(classifier, training, data, config, trial=trial)
    # The forecast fits biases alone.
    forecast = Expected("forecast", FITS * EVALUATIONS * len(data) * trial.fit.seconds)
    wanted = ("prepare", "spikes", "sensitivity") if inputs.finder is not None else ("prepare",)
    seconds = {stage.name: stage.seconds or 0.0 for stage in cost.stages}
    times = {name: 1 if name in ONCE else config.total_iterations for name in wanted}
    found = [Expected(name, seconds[name] / times[name]) for name in wanted]
    return [*found, forecast]


def in_order(seconds: Mapping[str, float], iterations: int, folds: int | None) -> list[Expected]:
    """All stages, one after the other, from the seconds of each in all."""
    operations = folds or 1
    every = [Expected("prepare", seconds["prepare"])]
    for fold in range(1, folds + 1) if folds else [0]:
        for iteration in range(1, iterations + 1):
            for name in seconds:
                if name == "front" and iteration == 1:
                    every.append(Expected(name, seconds[name] / operations, iteration, fold))
                elif name not in (*ONCE, "front"):
                    every.append(Expected(name, seconds[name] / (operations * iterations), iteration, fold))
        if folds:
            every.append(Expected("report", seconds["report"] / (2 * folds), 0, fold))
    return [*every, Expected("report", seconds["report"] / (2 if folds else 1))]
