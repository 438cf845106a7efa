"""How spikes are sought: one object for operations, studies and fine-tunes, and a finder."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

from torch import Tensor

from hessian_surgery.curvature.basis import Storage
from hessian_surgery.curvature.batch_operator import BatchOperator
from hessian_surgery.curvature.deflation import Deflated
from hessian_surgery.curvature.hessian import Hessian
from hessian_surgery.curvature.lanczos import TOLERANCE, Spectrum, lanczos
from hessian_surgery.curvature.memory_plan import BasisPlace, BasisPrecision, describe_storage, plan_room
from hessian_surgery.curvature.operators import Operator
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.splits import Sampling, hessian_batch
from hessian_surgery.errors import InputError, require
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.losses import Loss, LossName, make_loss
from hessian_surgery.model.parameters import ParameterSpace
from hessian_surgery.types import Progress


class NoSpikes(InputError):
    """There is no positive curvature, or none is left after the phases so far."""


@dataclass(frozen=True)
class SpikeSearch:
    """How spikes are sought: how many, on which images, how accurately, and in how much memory.

    Attributes:
        spikes: K; None means one fewer than the classes.
        lanczos_steps: m, the exact number of steps; None goes on until the K spikes have converged.
        tolerance: relative residual at which a spike has converged.
        hessian_samples: n, images in the Hessian batch.
        hessian_sampling: how they are drawn from the training data.
        redraw_hessian: draw a new batch for each iteration, instead of one for all.
        micro_batch: images per part if the batch is streamed; None keeps it resident.
        loss: the loss that the model was trained with, by name, or a mean over samples of
            logits (n, C) and labels (n,).
        basis: where the Lanczos basis is kept: on the model's device, in host memory or on disk;
            "auto" takes the first that fits.
        precision: "full" or "bfloat16" storage of the basis; "auto" halves it only if it would not
            fit otherwise.
        basis_memory: GB that the basis may take, wherever it is; None takes what is free.
    """

    spikes: int | None = None
    lanczos_steps: int | None = None
    tolerance: float = TOLERANCE
    hessian_samples: int = 256
    hessian_sampling: Sampling = "natural"
    redraw_hessian: bool = False
    micro_batch: int | None = None
    loss: LossName | Loss = "cross-entropy"
    basis: BasisPlace = "auto"
    precision: BasisPrecision = "auto"
    basis_memory: float | None = None

    def __post_init__(self) -> None:
        for name in ("spikes", "lanczos_steps", "hessian_samples", "micro_batch"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "at least 1")
        choices = {"hessian_sampling": Sampling, "basis": BasisPlace, "precision": BasisPrecision}
        if isinstance(self.loss, str):
            choices["loss"] = LossName
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
        """K for a number of classes: as given, or C − 1."""
        return self.spikes or max(1, classes - 1)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a loss that is a function goes by its name."""
        named = self.loss if isinstance(self.loss, str) else getattr(self.loss, "__name__", "custom")
        return asdict(replace(self, loss="cross-entropy")) | {"loss": named}


@dataclass(frozen=True)
class SpikeFinder:
    """Finds spikes at the model's present weights.

    Attributes:
        classifier: the model.
        space: the weights that spikes are directions of.
        data: the Hessian batch, held on the model's device; with `search.redraw_hessian` the
            training images that a batch is drawn from in each iteration.
        search: how spikes are sought.
        loss: what is differentiated twice.
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
            operator: the Hessian at these weights by default.
            iteration: with the seed, fixes the start vector.
            deflated: orthonormal vectors (k, p) to leave out.
            progress: called with (steps taken, steps at most).

        Raises:
            NoSpikes: no eigenvalue is positive.
        """
        operator = operator or self.operator(iteration=iteration)
        spectrum = lanczos(
            operator if deflated is None else Deflated(operator, deflated),
            self.count,
            steps=self.search.lanczos_steps,
            tolerance=self.search.tolerance,
            storage=self.storage,
            seed=self.seed,
            iteration=iteration,
            progress=progress,
        )
        if len(spectrum) == 0:
            raise NoSpikes("training_data: the Hessian has no positive eigenvalue here, so there are no spikes")
        return spectrum

    def with_steps(self, steps: int) -> "SpikeFinder":
        """The same with an exact number of Lanczos steps, and room for their vectors."""
        search = replace(self.search, lanczos_steps=steps)
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
    """A finder whose batch is drawn once, unless it is to be redrawn.

    The batch is held from here on: a data set that augments its images would give other ones for
    each product.

    Args:
        classifier: the model.
        space: the weights that spikes are directions of.
        training: the images that the batch is drawn from.
        search: how spikes are sought.
        classes: C, for the default K; by default the training data's.
        seed: fixes batches and start vectors.
        beside: vectors that are kept in the same way beside the basis.
        example: the memory of a graph is measured on its first image; by default the training data.

    Raises:
        InputError: it would not fit into memory; the message says what would.
    """
    count = search.count(len(training.classes) if classes is None else classes)
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
    """Where the basis goes, once the Hessian batch's graph and `taken` bytes more have their room.

    Raises:
        InputError: it does not fit; the message says what would.
    """
    images = min(search.micro_batch or len(training), search.hessian_samples, len(training))
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
