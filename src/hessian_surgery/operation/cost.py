"""What an operation would cost, before it starts: products, passes, seconds and memory."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from hessian_surgery.curvature.lanczos import STEPS_PER_SPIKE
from hessian_surgery.curvature.memory import GRAPH_FACTOR, Room, free_room, input_bytes, saved_bytes
from hessian_surgery.curvature.memory_plan import basis_bytes, describe_storage
from hessian_surgery.curvature.search import plan_basis
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.directions.calibration_gradients import gradient_rows
from hessian_surgery.directions.class_gradients import gradient_images
from hessian_surgery.directions.family import MICRO
from hessian_surgery.directions.moving import count_moving
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import BATCH_SIZE, check_classifier
from hessian_surgery.model.parameters import ParameterSpace, parameter_space
from hessian_surgery.model.passes import FEWEST, SIZES
from hessian_surgery.model.passes import SHORTEST as SHORTEST_PASS
from hessian_surgery.operation.algorithms import algorithm_of
from hessian_surgery.operation.coefficient_fit import PRICES
from hessian_surgery.operation.config import OperationConfig, SurgeryConfig
from hessian_surgery.operation.memory_stages import (
    GPU_LIBRARIES,
    LIBRARIES,
    Sizes,
    StageMemory,
    check_room,
    memory_by_stage,
    on_one_memory,
    spilled,
)
from hessian_surgery.operation.proposal import measured_rays
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
        directions: what weights move along in an iteration: K spikes, class gradients.
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
    space = parameter_space(classifier.module, config.parameters)
    config = _feasible(config, classifier, space, len(calibration_data.classes))
    sizes = _size_up(classifier, space, training_data, calibration_data, heldout_data, config, trial)
    steps = min(config.search.lanczos_steps or STEPS_PER_SPIKE * _spikes(sizes.classes, config), space.dimension)
    work = algorithm_of(config).work(config, _counts(calibration_data, config), classifier.device)
    saved = saved_bytes(classifier, training_data, space)
    sizes, basis = _with_basis(classifier, space, training_data, calibration_data, config, sizes, saved)
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
        graph_bytes=sizes.graph or MICRO * saved,
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
    space = parameter_space(classifier.module, config.parameters)
    config = _feasible(config, classifier, space, len(calibration_data.classes))
    counts = _counts(calibration_data, config)
    directions = sum(_gradient_rows(counts, config)[:2]) + config.uses_refit
    return try_passes(classifier, space, calibration_data, directions, config.batch_size, progress)


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
    space = parameter_space(classifier.module, config.parameters)
    room = free_room(space.device)
    config = _feasible(config, classifier, space, len(calibration_data.classes))
    sizes = _size_up(classifier, space, training_data, calibration_data, heldout_data, config, trial)
    check_room(memory_by_stage(sizes, room), room, space.device)


def _counts(data: LabelledSet, config: OperationConfig) -> torch.Tensor:
    """Calibration images of each class (C,)."""
    return data.counts if config.calibration_cap is None else data.counts.clamp(max=config.calibration_cap)


def _feasible(config: OperationConfig, classifier: Classifier, space: ParameterSpace, classes: int) -> OperationConfig:
    """The config without a refit, if the model has no linear head that may move."""
    if isinstance(config, SurgeryConfig) and config.uses_refit and not _heads(classifier, space, classes):
        return replace(config, directions="class-gradients")
    return config


def _heads(classifier: Classifier, space: ParameterSpace, classes: int) -> list[nn.Linear]:
    """The linear layers that may be the head, and may move; the narrowest first."""
    named = classifier.module.named_modules()
    layers = [layer for name, layer in named if isinstance(layer, nn.Linear) and _moves(name, space)]
    return sorted((layer for layer in layers if layer.out_features >= classes), key=lambda layer: layer.out_features)


def _moves(layer: str, space: ParameterSpace) -> bool:
    return f"{layer}.weight".lstrip(".") in space.names


def _width(classifier: Classifier, space: ParameterSpace, classes: int) -> int:
    """How many features of an image the head reads."""
    return _heads(classifier, space, classes)[0].in_features


def _spikes(classes: int, config: OperationConfig) -> int:
    return config.search.count(classes) if config.uses_spikes else 0


def _gradient_rows(counts: torch.Tensor, config: OperationConfig) -> tuple[int, ...]:
    return gradient_rows(counts, len(config.alone)) if config.uses_gradients else ()


def _size_up(
    classifier: Classifier,
    space: ParameterSpace,
    training: LabelledSet,
    calibration: LabelledSet,
    heldout: LabelledSet | None,
    config: OperationConfig,
    trial: Trial | None,
) -> Sizes:
    """What memory depends on, but for spikes."""
    counts = _counts(calibration, config)
    images = int(counts.sum())
    rows = _gradient_rows(counts, config)
    classes = len(calibration.classes)
    vector = space.dimension * space.dtype.itemsize
    sizes = Sizes(
        libraries=LIBRARIES + (GPU_LIBRARIES if space.device.type == "cuda" else 0),
        images=images,
        moving=count_moving(images, space.device),
        heldout=0 if heldout is None else len(heldout),
        drawn=len(gradient_images(training)) if rows else 0,
        image=input_bytes(calibration),
        classes=classes,
        vector=vector,
        state=sum(tensor.nbytes for tensor in classifier.module.state_dict().values()),
        gradients=rows,
        # Both halves of the calibration images share a direction.
        directions=_spikes(classes, config) + sum(rows[:2]) + config.uses_refit,
        uneven=len(training) > 0 and int(training.counts.min()) != int(training.counts.max()),
        plans=measured_rays(config, config.uses_refit) // len(PRICES) if isinstance(config, SurgeryConfig) else 1,
        features=4 * images * _width(classifier, space, classes) if config.uses_refit else 0,
        with_plan=config.algorithm == "default",
        recalibrated=config.recalibrate,
    )
    if trial is None:
        return sizes
    on_gpu = space.device.type == "cuda"
    chosen = not on_gpu and images >= FEWEST and images * trial.forward.seconds > SHORTEST_PASS
    default = min(images, config.batch_size or BATCH_SIZE)
    # Where batch sizes are tried on a CPU, one of the smaller ones is usually the fastest.
    batch = min(images, SIZES[1]) if chosen and config.batch_size is None else default
    forward = trial.forward.at(batch)
    return replace(
        sizes,
        tried=trial.forward.at(default),
        forward=forward,
        freed=0 if on_gpu else forward + trial.forward.fixed,
        gradient=trial.gradient.nbytes,
        slope=trial.slope.nbytes if on_gpu else forward + 3 * vector,
    )


def _with_basis(
    classifier: Classifier,
    space: ParameterSpace,
    training: LabelledSet,
    calibration: LabelledSet,
    config: OperationConfig,
    sizes: Sizes,
    saved: int,
) -> tuple[Sizes, str | None]:
    """The sizes with what gradients take, and spikes if any are sought; where a basis would be."""
    sizes = replace(sizes, gradient=max(sizes.gradient, MICRO * saved))
    if not config.uses_spikes:
        return sizes, None
    search = config.search
    spikes = search.count(sizes.classes)
    beside = config.vectors_beside * spikes
    storage = plan_basis(classifier, space, training, search, spikes, beside=beside, example=calibration)
    images = min(search.micro_batch or search.hessian_samples, len(training))
    kept = basis_bytes(replace(storage, rows=storage.rows + beside + spikes), space)
    graph = GRAPH_FACTOR * images * saved
    sizes = replace(sizes, basis=kept, basis_place=storage.place, graph=graph, hessian_images=images)
    return sizes, describe_storage(storage, space)


def _stage(memory: StageMemory, seconds: dict[str, float] | None, device: torch.device) -> Stage:
    memory = on_one_memory(memory, device)
    held = {f"{place}_bytes": memory.held(place) for place in ("device", "host", "disk")}
    return Stage(memory.name, None if seconds is None else seconds.get(memory.name, 0.0), **held)
