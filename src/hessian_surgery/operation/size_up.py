"""How large an operation is: what its seconds and its memory are computed from."""

from dataclasses import dataclass, replace

from torch import Tensor

from hessian_surgery.curvature.basis import Place
from hessian_surgery.curvature.memory import GRAPH_FACTOR, input_bytes, saved_bytes
from hessian_surgery.curvature.memory_plan import basis_bytes, describe_storage
from hessian_surgery.curvature.search import plan_basis
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.directions.calibration_gradients import gradient_rows
from hessian_surgery.directions.class_gradients import gradient_images
from hessian_surgery.directions.family import MICRO
from hessian_surgery.directions.moving import count_moving
from hessian_surgery.evidence.leading_outputs import LEADING
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import BATCH_SIZE
from hessian_surgery.model.head import Head
from hessian_surgery.model.parameters import ParameterSpace, parameter_space
from hessian_surgery.model.passes import FEWEST, SIZES
from hessian_surgery.model.passes import SHORTEST as SHORTEST_PASS
from hessian_surgery.operation.coefficient_fit import PRICES, SHARES
from hessian_surgery.operation.config import OperationConfig, SurgeryConfig
from hessian_surgery.operation.ladder import TAUS
from hessian_surgery.operation.problem import settle_refit
from hessian_surgery.operation.proposal import count_plans
from hessian_surgery.operation.trial import Trial

FLOAT = 4
# What libraries and Python's own objects take in host memory when they are first used.
LIBRARIES = 10_000_000
# A GPU's libraries read their kernels when these are first used (benchmarks.announced).
GPU_LIBRARIES = 250_000_000


@dataclass(frozen=True)
class Sizes:
    """What the seconds and the memory of an operation depend on.

    Attributes:
        libraries: bytes that libraries take in host memory.
        images: calibration images, N.
        moving: those that directions are tried on.
        heldout: held-out images.
        drawn: training images whose gradients are taken.
        image: bytes of one image.
        classes: C.
        vector: bytes of a vector of all weights that may move.
        state: bytes of the whole model.
        gradients: rows of gradients in each family: of training images, of each calibration half.
        directions: directions with logit changes, K'.
        uneven: whether classes differ in training images, so that there are prior shifts.
        plans: how often all families are fitted: with targets for two aims, and from a refitted
            head once more.
        refit: whether the head is fitted again.
        features: bytes of what it reads of all images; 0 if it is not fitted again, like the next.
        head: its weights and biases, C (d + 1).
        basis: bytes of the Lanczos basis and of spikes that are kept.
        basis_place: where these are.
        graph: bytes of the graph of a Hessian batch, or of a batch that is differentiated.
        hessian_images: images of that batch.
        tried: bytes of activations while batch sizes are tried.
        forward: bytes of activations of a forward pass.
        gradient: bytes of a batch that is differentiated, with the vectors that this takes.
        slope: bytes of a batch while logit changes are found, likewise.
        freed: bytes that a forward pass takes beside what a gradient has freed.
        with_plan: whether steps are fitted; the paper's loop fits none.
        recalibrated: whether a temperature is fitted in the end.
    """

    libraries: int
    images: int
    moving: int
    heldout: int
    drawn: int
    image: int
    classes: int
    vector: int
    state: int
    gradients: tuple[int, ...]
    directions: int
    uneven: bool
    plans: int = 1
    refit: bool = False
    features: int = 0
    head: int = 0
    basis: int = 0
    basis_place: Place = "device"
    graph: int = 0
    hessian_images: int = 0
    tried: int = 0
    forward: int = 0
    gradient: int = 0
    slope: int = 0
    freed: int = 0
    with_plan: bool = True
    recalibrated: bool = False

    @property
    def leading(self) -> int:
        """Logits of an image that are modelled, L."""
        return min(LEADING, self.classes)

    @property
    def all_logits(self) -> int:
        """Bytes of all logits of all images."""
        return FLOAT * self.images * self.classes

    @property
    def modelled(self) -> int:
        """Bytes of the modelled logits of all images."""
        return FLOAT * self.images * self.leading

    @property
    def steps(self) -> int:
        """Candidates from each start: just that, prior shifts, biases, all directions."""
        starts = 2 if self.refit else 1
        return starts * (1 + self.uneven * len(TAUS)) + 2 * self.plans * len(PRICES) * len(SHARES)


def counts_of(data: LabelledSet, config: OperationConfig) -> Tensor:
    """Calibration images of each class (C,)."""
    return data.counts if config.calibration_cap is None else data.counts.clamp(max=config.calibration_cap)


@dataclass(frozen=True)
class Planned:
    """A model, and what an operation on it would do.

    Attributes:
        classifier: the model.
        space: the weights that may move.
        config: the choices, without what the model does not allow.
        head: the head that is fitted again; None if none is.
    """

    classifier: Classifier
    space: ParameterSpace
    config: OperationConfig
    head: Head | None


def plan_for(classifier: Classifier, calibration: LabelledSet, config: OperationConfig) -> Planned:
    """What an operation would do; two calibration images tell where the head is."""
    space = parameter_space(classifier.module, config.parameters)
    config, head = settle_refit(config, classifier, space, calibration)
    return Planned(classifier, space, config, head)


def count_spikes(classes: int, config: OperationConfig) -> int:
    """K spikes, if any are sought."""
    return config.search.count(classes) if config.uses_spikes else 0


def gradients_of(counts: Tensor, config: OperationConfig) -> tuple[int, ...]:
    """Class gradients in each family, if any are taken; see `gradient_rows`."""
    return gradient_rows(counts, len(config.alone)) if config.uses_gradients else ()


def size_up(
    planned: Planned,
    training: LabelledSet,
    calibration: LabelledSet,
    heldout: LabelledSet | None,
    trial: Trial | None,
) -> Sizes:
    """What seconds and memory depend on, but for spikes."""
    space, config, head = planned.space, planned.config, planned.head
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
        state=sum(tensor.nbytes for tensor in planned.classifier.module.state_dict().values()),
        gradients=rows,
        # Both halves of the calibration images share a direction.
        directions=count_spikes(classes, config) + sum(rows[:2]) + config.uses_refit,
        uneven=len(training) > 0 and int(training.counts.min()) != int(training.counts.max()),
        plans=count_plans(config, config.uses_refit) if isinstance(config, SurgeryConfig) else 1,
        refit=head is not None,
        features=0 if head is None else FLOAT * images * head.module.in_features,
        head=0 if head is None else head.module.out_features * (head.module.in_features + 1),
        with_plan=config.algorithm == "default",
        recalibrated=config.recalibrate,
    )
    return sizes if trial is None else _with_batches(sizes, trial, config, space.device.type == "cuda")


def _with_batches(sizes: Sizes, trial: Trial, config: OperationConfig, on_gpu: bool) -> Sizes:
    """The sizes with what a batch takes, as a trial has found."""
    images = sizes.images
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
        slope=trial.slope.nbytes if on_gpu else forward + 3 * sizes.vector,
    )


def with_basis(
    planned: Planned, training: LabelledSet, calibration: LabelledSet, sizes: Sizes
) -> tuple[Sizes, str | None]:
    """The sizes with what gradients take, and spikes if any are sought; where a basis would be."""
    space, config = planned.space, planned.config
    saved = saved_bytes(planned.classifier, training, space)
    sizes = replace(sizes, gradient=max(sizes.gradient, MICRO * saved), graph=MICRO * saved)
    if not config.uses_spikes:
        return sizes, None
    search = config.search
    spikes = search.count(sizes.classes)
    beside = config.vectors_beside * spikes
    storage = plan_basis(planned.classifier, space, training, search, spikes, beside=beside, example=calibration)
    images = min(search.micro_batch or search.hessian_samples, len(training))
    kept = basis_bytes(replace(storage, rows=storage.rows + beside + spikes), space)
    graph = GRAPH_FACTOR * images * saved
    sizes = replace(sizes, basis=kept, basis_place=storage.place, graph=graph, hessian_images=images)
    return sizes, describe_storage(storage, space)
