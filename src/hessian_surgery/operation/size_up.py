"""How large an operation is: what its seconds and its memory are computed from."""

from dataclasses import replace

from torch import Tensor, nn

from hessian_surgery.curvature.memory import GRAPH_FACTOR, input_bytes
from hessian_surgery.curvature.memory_plan import basis_bytes, describe_storage
from hessian_surgery.curvature.search import plan_basis
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.directions.calibration_gradients import gradient_rows
from hessian_surgery.directions.class_gradients import gradient_images
from hessian_surgery.directions.family import MICRO
from hessian_surgery.directions.moving import count_moving
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import BATCH_SIZE
from hessian_surgery.model.parameters import ParameterSpace
from hessian_surgery.model.passes import FEWEST, SIZES
from hessian_surgery.model.passes import SHORTEST as SHORTEST_PASS
from hessian_surgery.operation.coefficient_fit import PRICES
from hessian_surgery.operation.config import OperationConfig, SurgeryConfig
from hessian_surgery.operation.memory_stages import GPU_LIBRARIES, LIBRARIES, Sizes
from hessian_surgery.operation.proposal import measured_rays
from hessian_surgery.operation.trial import Trial


def counts_of(data: LabelledSet, config: OperationConfig) -> Tensor:
    """Calibration images of each class (C,)."""
    return data.counts if config.calibration_cap is None else data.counts.clamp(max=config.calibration_cap)


def feasible(config: OperationConfig, classifier: Classifier, space: ParameterSpace, classes: int) -> OperationConfig:
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


def count_spikes(classes: int, config: OperationConfig) -> int:
    """K spikes, if any are sought."""
    return config.search.count(classes) if config.uses_spikes else 0


def gradients_of(counts: Tensor, config: OperationConfig) -> tuple[int, ...]:
    """Class gradients in each family, if any are taken; see `gradient_rows`."""
    return gradient_rows(counts, len(config.alone)) if config.uses_gradients else ()


def size_up(
    classifier: Classifier,
    space: ParameterSpace,
    training: LabelledSet,
    calibration: LabelledSet,
    heldout: LabelledSet | None,
    config: OperationConfig,
    trial: Trial | None,
) -> Sizes:
    """What memory depends on, but for spikes."""
    counts = counts_of(calibration, config)
    images = int(counts.sum())
    rows = gradients_of(counts, config)
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
        directions=count_spikes(classes, config) + sum(rows[:2]) + config.uses_refit,
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


def with_basis(
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
