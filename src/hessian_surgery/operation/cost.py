"""What an operation would cost, before it starts: products, passes, seconds and memory."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from hessian_surgery.curvature.lanczos import STEPS_PER_SPIKE
from hessian_surgery.curvature.memory import Room, free_room
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import check_classifier
from hessian_surgery.operation.algorithms import algorithm_of
from hessian_surgery.operation.config import OperationConfig
from hessian_surgery.operation.memory_stages import (
    StageMemory,
    check_room,
    memory_by_stage,
    on_one_memory,
    spilled,
)
from hessian_surgery.operation.size_up import count_spikes, counts_of, gradients_of, plan_for, size_up, with_basis
from hessian_surgery.operation.stage_seconds import seconds_by_stage
from hessian_surgery.operation.trial import Trial, try_passes
from hessian_surgery.types import Progress


@dataclass(frozen=True)
class Stage:
    """What one stage takes.

    Attributes:
        name: such as "directions".
        seconds: over all operations and iterations; None if nothing was tried.
        device_bytes: the most that it holds on a GPU, besides the model.
        host_bytes: in host memory.
        disk_bytes: in temporary files.
    """

    name: str
    seconds: float | None
    device_bytes: int
    host_bytes: int
    disk_bytes: int


@dataclass(frozen=True)
class Cost:
    """An estimate.

    Attributes:
        operations: how many; with folds one for each.
        weights: p, the weights that may move.
        directions: what weights move along, beside biases, in an iteration: K spikes, class
            gradients; in the first also a refitted head.
        gradients: training images whose gradient is taken, in all.
        products: Hessian products in all; an estimate where Lanczos runs to convergence.
        passes: forward passes over the calibration images in all.
        backward: how many of them go back as well, which costs about twice as much again.
        images: images that go forward in all; the operations of F folds pass over (F − 1) N.
        basis: where and how the Lanczos basis would be kept; None if no spikes are sought.
        graph_bytes: activations and graph of the Hessian batch, or of a batch of training images.
        data_bytes: the calibration images.
        stages: seconds and memory of each stage, in order.
        spilled: what would go to host memory or to disk, as there is no room for it.
    """

    operations: int
    weights: int
    directions: int
    gradients: int
    products: int
    passes: int
    backward: int
    images: int
    basis: str | None
    graph_bytes: int
    data_bytes: int
    stages: tuple[Stage, ...]
    spilled: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        """The most that a stage holds on the GPU, and the most in memory, besides the model."""
        return max(stage.device_bytes for stage in self.stages) + max(stage.host_bytes for stage in self.stages)

    @property
    def seconds(self) -> float | None:
        """Seconds of all stages; None if nothing was tried."""
        known = [stage.seconds for stage in self.stages if stage.seconds is not None]
        return sum(known) if known else None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"total_bytes": self.total_bytes, "seconds": self.seconds}


def estimate_cost(
    classifier: Classifier,
    training_data: LabelledSet,
    calibration_data: LabelledSet,
    config: OperationConfig,
    folds: int | None = None,
    heldout_data: LabelledSet | None = None,
    trial: Trial | None = None,
    room: Room | None = None,
    front: bool = True,
) -> Cost:
    """The cost of `operate`, from one image's forward pass and arithmetic.

    Args:
        classifier: the model.
        training_data: as for `operate`, like the next four.
        calibration_data: the images that decisions are made on.
        config: the settings.
        folds: how many.
        heldout_data: the images of the report.
        trial: what passes take on this machine; without it no seconds are given.
        room: the free memory; by default measured now.
        front: whether other objectives and budgets are predicted too; not with folds.
    """
    check_classifier(classifier, calibration_data)
    planned = plan_for(classifier, calibration_data, config)
    space, config = planned.space, planned.config
    sizes = size_up(planned, training_data, calibration_data, heldout_data, trial)
    steps = min(config.search.lanczos_steps or STEPS_PER_SPIKE * count_spikes(sizes.classes, config), space.dimension)
    work = algorithm_of(config).work(config, counts_of(calibration_data, config), classifier.device)
    sizes, basis = with_basis(planned, training_data, calibration_data, sizes)
    operations, iterations = folds or 1, config.total_iterations
    passes = work.passes + config.recalibrate
    memory = memory_by_stage(sizes, room or free_room(space.device))
    seconds = None if trial is None else seconds_by_stage(trial, sizes, work, operations, iterations, steps)
    return Cost(
        operations=operations,
        weights=space.dimension,
        directions=sizes.directions,
        gradients=operations * iterations * sizes.drawn,
        products=operations * iterations * steps,
        passes=operations * passes,
        backward=operations * work.backward,
        images=max(1, operations - 1) * passes * sizes.images + operations * work.extra_images,
        basis=basis,
        graph_bytes=sizes.graph,
        data_bytes=sizes.images * sizes.image,
        stages=tuple(_stage(s, seconds, space.device) for s in memory if s.name != "front" or (front and not folds)),
        spilled=spilled(memory, classifier.device),
    )


def try_operation(
    classifier: Classifier,
    calibration_data: LabelledSet,
    config: OperationConfig,
    progress: Progress | None = None,
) -> Trial:
    """Try the passes of an operation for a moment; see `try_passes`."""
    planned = plan_for(classifier, calibration_data, config)
    config = planned.config
    counts = counts_of(calibration_data, config)
    directions = sum(gradients_of(counts, config)[:2]) + config.uses_refit
    return try_passes(
        classifier, planned.space, calibration_data, directions, config.batch_size, planned.head, progress
    )


def check_memory(
    classifier: Classifier,
    training_data: LabelledSet,
    calibration_data: LabelledSet,
    heldout_data: LabelledSet | None,
    config: OperationConfig,
    trial: Trial | None = None,
) -> None:
    """Refuse an operation that cannot fit, by arithmetic and what a trial says; spikes apart.

    Raises:
        InputError: it does not fit; the message says what would help.
    """
    planned = plan_for(classifier, calibration_data, config)
    room = free_room(planned.space.device)
    sizes = size_up(planned, training_data, calibration_data, heldout_data, trial)
    check_room(memory_by_stage(sizes, room), room, planned.space.device)


def _stage(memory: StageMemory, seconds: dict[str, float] | None, device: torch.device) -> Stage:
    memory = on_one_memory(memory, device)
    held = {f"{place}_bytes": memory.held(place) for place in ("device", "host", "disk")}
    return Stage(memory.name, None if seconds is None else seconds.get(memory.name, 0.0), **held)
