"""How spikes are found: settings for operations, studies and fine-tuning, and the finder."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

from torch import Tensor

from hessian_surgery.curvature.basis import Storage
from hessian_surgery.curvature.batch_operator import BatchOperator
from hessian_surgery.curvature.deflation import Deflated
from hessian_surgery.curvature.hessian import Hessian
from hessian_surgery.curvature.krylov import gaussian
from hessian_surgery.curvature.lanczos import STEPS_PER_SPIKE, TOLERANCE, Signs, Spectrum, check_count, lanczos
from hessian_surgery.curvature.memory_plan import BasisPlace, BasisPrecision, describe_storage, plan_room
from hessian_surgery.curvature.operators import Operator
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.splits import Sampling, hessian_batch
from hessian_surgery.errors import InputError, require
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.losses import Loss, check_loss, make_loss
from hessian_surgery.model.parameters import ParameterSpace
from hessian_surgery.ranks import present
from hessian_surgery.seeding import generator
from hessian_surgery.short_repr import short_repr
from hessian_surgery.type_check import require_types
from hessian_surgery.types import Progress


class NoSpikes(InputError):
    """There is no positive curvature, or the loop's earlier phases have left none."""


# Spikes that are sought unless their number is given, however many classes there are.
MOST = 99


@dataclass(frozen=True)
class SpikeSearch:
    """How spikes are sought: how many, on which images, how accurately, and in how much memory.

    Attributes:
        spikes: K, how many to find; None means one fewer than there are classes.
        lanczos_steps: m, the exact number of steps; None goes on until the K spikes have converged.
        signs: "positive" takes positive eigenvalues only, so that there may be fewer than K. "all"
            takes the K largest whatever their sign, as the paper does on CIFAR-10.
        tolerance: relative residual at which a spike counts as converged.
        hessian_samples: n, how many images are in the Hessian batch.
        hessian_sampling: how they are drawn from the training data.
        redraw_hessian: draw a new batch for each iteration, instead of one batch for all.
        micro_batch: images per part, to process the batch in parts; None takes it all at once.
        loss: the loss that the model was trained with: its name, such as "focal", "focal:1.5",
            "label-smoothing" or "class-weights:1,2,5"; or a function of logits (n, C) and labels
            (n,) that returns the mean over samples.
        basis: where the Lanczos basis is kept: on the model's device, in host memory or on disk;
            "auto" takes the first that fits.
        precision: how the basis is stored: "full" or "bfloat16"; "auto" takes bfloat16 only if
            full precision does not fit.
        basis_memory: GB that the basis may take, wherever it is; None allows all that is free.

    Example:
        >>> hs.SurgeryConfig(directions="spikes", search=hs.SpikeSearch(spikes=9)).search
        SpikeSearch(spikes=9)
    """

    spikes: int | None = None
    lanczos_steps: int | None = None
    signs: Signs = "positive"
    tolerance: float = TOLERANCE
    hessian_samples: int = 256
    hessian_sampling: Sampling = "natural"
    redraw_hessian: bool = False
    micro_batch: int | None = None
    loss: str | Loss = "cross-entropy"
    basis: BasisPlace = "auto"
    precision: BasisPrecision = "auto"
    basis_memory: float | None = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_types(self)
        for name in ("spikes", "lanczos_steps", "micro_batch"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "at least 1")
        require(self.hessian_samples >= 1, "hessian_samples", self.hessian_samples, "at least 1")
        choices = {"signs": Signs, "hessian_sampling": Sampling, "basis": BasisPlace, "precision": BasisPrecision}
        if isinstance(self.loss, str):
            check_loss(self.loss)
        for name, literal in choices.items():
            value = getattr(self, name)
            require(value in get_args(literal), name, value, f"one of {', '.join(get_args(literal))}")
        require(0 < self.tolerance < 1, "tolerance", self.tolerance, "a number between 0 and 1")
        enough = self.basis_memory is None or self.basis_memory > 0
        require(enough, "basis_memory", self.basis_memory, "positive")
        if self.lanczos_steps is not None and self.spikes is not None:
            enough = self.lanczos_steps >= self.spikes
            require(enough, "lanczos_steps", self.lanczos_steps, f"at least as many as spikes ({self.spikes})")

    def count(self, classes: int) -> int:
        """K for this number of classes: `spikes` if given, else C − 1, but at most `MOST`."""
        return self.spikes or min(MOST, max(1, classes - 1))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a loss function is replaced by its name."""
        named = self.loss if isinstance(self.loss, str) else getattr(self.loss, "__name__", "custom")
        return asdict(replace(self, loss="cross-entropy")) | {"loss": named}


@dataclass(frozen=True)
class SpikeFinder:
    """Finds spikes at the model's present weights.

    Attributes:
        classifier: the model.
        space: the weights that the Hessian is taken over.
        data: the Hessian batch, held on the model's device. With `search.redraw_hessian`, the
            training images that each iteration draws a batch from.
        search: the settings.
        loss: the loss function, which the Hessian differentiates twice.
        count: K.
        storage: where the Lanczos basis is kept.
        seed: fixes batches and start vectors.
    """

    classifier: Classifier
    space: ParameterSpace
    data: LabelledSet
    search: SpikeSearch
    loss: Loss
    count: int
    storage: Storage
    seed: int = 0

    def batch(self, iteration: int = 0) -> LabelledSet:
        """The Hessian batch of an iteration."""
        if not self.search.redraw_hessian:
            return self.data
        return _draw(self.data, self.search, self.seed, iteration).resident(self.space.device)

    def operator(self, kind: Callable[..., BatchOperator] = Hessian, iteration: int = 0) -> BatchOperator:
        """A curvature operator at the present weights."""
        return kind(self.classifier, self.batch(iteration), self.space, self.loss, self.search.micro_batch)

    def find(
        self,
        operator: Operator | None = None,
        *,
        iteration: int = 0,
        deflated: Tensor | None = None,
        progress: Progress | None = None,
    ) -> Spectrum:
        """The leading spikes at the present weights: at least one, at most K.

        Args:
            operator: by default the Hessian at the present weights.
            iteration: with the seed, fixes the start vector, and the batch if it is redrawn.
            deflated: orthonormal vectors (k, p) to take out of the operator, such as known spikes.
            progress: called with (steps taken, how many there are likely to be).

        Raises:
            NoSpikes: no eigenvalue is positive.
        """
        operator = operator or self.operator(iteration=iteration)
        start = None
        if deflated is not None:
            operator = Deflated(operator, deflated)
            # Of a start vector outside their complement, pairs that have not converged keep a part.
            start = operator.without(gaussian(self.space, generator(self.seed, "deflated start", iteration)))
        spectrum = lanczos(
            operator,
            self.count,
            start=start,
            steps=self.search.lanczos_steps,
            tolerance=self.search.tolerance,
            storage=self.storage,
            signs=self.search.signs,
            seed=self.seed,
            iteration=iteration,
            progress=progress,
        )
        if not (spectrum.eigenvalues > 0).any():
            raise NoSpikes("training_data: the Hessian has no positive eigenvalue here, so there are no spikes")
        return spectrum

    @property
    def likely_steps(self) -> int:
        """How many Lanczos steps there are likely to be."""
        return min(self.search.lanczos_steps or STEPS_PER_SPIKE * self.count, self.space.dimension)

    def with_steps(self, steps: int) -> "SpikeFinder":
        """The same finder with an exact number of Lanczos steps, and pairs of any sign."""
        search = replace(self.search, spikes=None, lanczos_steps=steps, signs="all")
        storage = plan_basis(self.classifier, self.space, self.data, search, self.count)
        return replace(self, search=search, storage=storage)

    def describe(self) -> str:
        """One line on where the basis is kept."""
        return describe_storage(self.storage, self.space)


def make_finder(
    classifier: Classifier,
    space: ParameterSpace,
    training: LabelledSet,
    search: SpikeSearch,
    *,
    classes: int | None = None,
    seed: int = 0,
    beside: int = 0,
    example: LabelledSet | None = None,
) -> SpikeFinder:
    """Make a finder, with a batch that is drawn now unless each iteration draws its own.

    The batch is kept in memory from now on: otherwise a data set that augments its images would
    give different ones for each product.

    Args:
        classifier: the model.
        space: the weights that the Hessian is taken over.
        training: the images that the batch is drawn from.
        search: the settings.
        classes: C, for the default K; by default the training data's.
        seed: fixes batches and start vectors.
        beside: how many more vectors memory must hold, stored in the same way as the basis.
        example: data whose first image serves to measure the memory of a graph; by default the
            training data.

    Raises:
        InputError: the search does not fit into memory; the message says what would.
    """
    count = search.count(len(training.classes) if classes is None else classes)
    check_count(count, min(search.lanczos_steps or count, space.dimension), space.dimension)
    storage = plan_basis(classifier, space, training, search, count, beside=beside, example=example)
    loss = make_loss(search.loss, training.counts) if isinstance(search.loss, str) else search.loss
    data = training
    if not search.redraw_hessian:
        data = _draw(training, search, seed).resident(classifier.device)
    return SpikeFinder(classifier, space, data, search, loss, count, storage, seed)


def plan_basis(
    classifier: Classifier,
    space: ParameterSpace,
    training: LabelledSet,
    search: SpikeSearch,
    count: int,
    *,
    beside: int = 0,
    taken: int = 0,
    example: LabelledSet | None = None,
) -> Storage:
    """Where the basis fits, beside the graph of the Hessian batch and `taken` more bytes.

    Raises:
        InputError: the basis does not fit; the message says what would.
    """
    # Each rank holds the graph of its own part of the batch.
    part = math.ceil(min(search.hessian_samples, len(training)) / present().size)
    images = min(search.micro_batch or part, part)
    return plan_room(
        classifier,
        space,
        training if example is None else example,
        images,
        count,
        search.lanczos_steps,
        search.tolerance,
        search.basis,
        search.precision,
        search.basis_memory,
        beside=beside,
        taken=taken,
    )


def _draw(training: LabelledSet, search: SpikeSearch, seed: int, iteration: int = 0) -> LabelledSet:
    return hessian_batch(training, search.hessian_samples, search.hessian_sampling, seed, iteration)
