"""What the studies share: where spikes are sought, data to measure on, weights that come back, progress in parts."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import Tensor, nn

from hessian_surgery.curvature.basis import Storage
from hessian_surgery.curvature.batch_operator import BatchOperator
from hessian_surgery.curvature.hessian import Hessian
from hessian_surgery.curvature.lanczos import TOLERANCE, Spectrum, lanczos
from hessian_surgery.curvature.memory_plan import BasisPlace, BasisPrecision, describe_storage, plan_room
from hessian_surgery.data.labelled import Data, LabelledSet, as_labelled
from hessian_surgery.data.splits import hessian_batch
from hessian_surgery.errors import InputError
from hessian_surgery.model.classifier import Classifier, as_classifier
from hessian_surgery.model.evaluation import check_classifier
from hessian_surgery.model.losses import Loss, cross_entropy
from hessian_surgery.model.parameters import ParameterSpace, Snapshot, parameter_space
from hessian_surgery.operation.problem import every_class, refuse_half_precision
from hessian_surgery.types import Progress

LOG = logging.getLogger(__name__)
# What a bar counts to: parts of a study take unlike units, so the whole is told in thousandths.
WHOLE = 1000


@dataclass(frozen=True)
class Seeking:
    """How spikes are sought: on how many images, how many, how well, among which weights, in what room.

    Attributes:
        samples: n, images in the Hessian batch.
        spikes: K, at most; None means one fewer than the classes.
        steps: m, exactly; None goes on until the K spikes have converged.
        tolerance: relative residual at which a spike has converged.
        parameters: glob over the names of the weights that spikes are directions of, such as `layer4.*`.
        loss: what is differentiated twice: a mean over samples, of logits (n, C) and labels (n,).
        seed: fixes the batch, the Lanczos start vector and whatever else a study draws.
        micro_batch: images per part when the batch is streamed; None keeps it resident.
        basis: where the Lanczos basis is kept: on the model's device, in host memory or on disk; "auto" takes the first
            that fits.
        precision: "full" or "bfloat16" storage of the basis; "auto" halves it only where it would not fit.
        basis_memory: GB that the basis may take, wherever it is; None takes what is free.
    """

    samples: int = 128
    spikes: int | None = None
    steps: int | None = None
    tolerance: float = TOLERANCE
    parameters: str = "*"
    loss: Loss = cross_entropy
    seed: int = 0
    micro_batch: int | None = None
    basis: BasisPlace = "auto"
    precision: BasisPrecision = "auto"
    basis_memory: float | None = None

    def __post_init__(self) -> None:
        # Elsewhere 0 would count as not given, and a negative number as anything; the names are the commands'.
        counts = {"spikes": self.spikes, "lanczos_steps": self.steps, "micro_batch": self.micro_batch}
        for name, value in counts.items():
            if value is not None and value < 1:
                raise InputError(f"{name}: got {value}; it must be at least 1")
        if self.basis_memory is not None and self.basis_memory <= 0:
            raise InputError(f"basis_memory: got {self.basis_memory:g}; it must be positive")


@dataclass(frozen=True)
class Setting:
    """A classifier, one Hessian batch, and how spikes are sought on it.

    Attributes:
        classifier: the model; its present weights are where spikes are sought.
        space: the weights that spikes are directions of.
        batch: the Hessian batch, held on the model's device.
        seeking: how spikes are sought; the Lanczos start vector is the same at every call.
        spikes: K, settled.
        storage: where the Lanczos basis is kept.
    """

    classifier: Classifier
    space: ParameterSpace
    batch: LabelledSet
    seeking: Seeking
    spikes: int
    storage: Storage

    def operator(self, kind: Callable[..., BatchOperator]) -> BatchOperator:
        """A curvature operator at the present weights."""
        return kind(self.classifier, self.batch, self.space, self.seeking.loss, self.seeking.micro_batch)

    def with_steps(self, steps: int) -> "Setting":
        """The same with exactly so many Lanczos steps, and room for their vectors."""
        seeking = replace(self.seeking, steps=steps)
        storage = plan_basis(self.classifier, self.space, self.batch, seeking, self.spikes)
        return replace(self, seeking=seeking, storage=storage)

    def hessian(self) -> BatchOperator:
        """The Hessian at the present weights."""
        return self.operator(Hessian)

    def find_spikes(self, operator: BatchOperator | None = None, progress: Progress | None = None) -> Spectrum:
        """The leading spikes at the present weights; at least one, at most K."""
        spectrum = lanczos(
            operator or self.hessian(),
            self.spikes,
            steps=self.seeking.steps,
            tolerance=self.seeking.tolerance,
            storage=self.storage,
            seed=self.seeking.seed,
            progress=progress,
        )
        if len(spectrum) == 0:
            raise InputError("training_data: the Hessian has no positive eigenvalue here, so there are no spikes")
        return spectrum


def spike_rows(spectrum: Spectrum) -> Tensor:
    """The spikes (K, p) where and as the weights' vectors are; a spectrum may keep them elsewhere, or rounded."""
    return spectrum.vectors.to(spectrum.space.device, spectrum.space.dtype)


def open_setting(model: nn.Module | Classifier, training_data: Data, seeking: Seeking) -> Setting:
    """A `Setting` whose batch is drawn once from `training_data`.

    Raises:
        InputError: it would not fit into memory; the message says what would.
    """
    classifier, pool = as_classifier(model), as_labelled(training_data)
    space = parameter_space(classifier.module, seeking.parameters)
    refuse_half_precision(space)
    batch = hessian_batch(pool, seeking.samples, seed=seeking.seed).resident(classifier.device)
    spikes = seeking.spikes or max(1, len(pool.classes) - 1)
    storage = plan_basis(classifier, space, batch, seeking, spikes)
    LOG.info(describe_storage(storage, space))
    return Setting(classifier, space, batch, seeking, spikes, storage)


def plan_basis(
    classifier: Classifier, space: ParameterSpace, batch: LabelledSet, seeking: Seeking, spikes: int, taken: int = 0
) -> Storage:
    """Room for the vectors of so many spikes or of fixed steps, beside the batch's graph and `taken` bytes more.

    Raises:
        InputError: there is none; the message says what would fit.
    """
    return plan_room(
        classifier,
        space,
        batch,
        min(seeking.micro_batch or len(batch), len(batch)),
        spikes,
        seeking.steps,
        seeking.tolerance,
        seeking.basis,
        seeking.precision,
        seeking.basis_memory,
        taken=taken,
    )


def open_measured(model: nn.Module | Classifier, data: Data, argument: str) -> LabelledSet:
    """Data that accuracies can be measured on: every class has images, and the model answers to them."""
    classifier = as_classifier(model)
    labelled = every_class(as_labelled(data), argument).resident(classifier.device)
    check_classifier(classifier, labelled)
    return labelled


@contextmanager
def keeping_weights(space: ParameterSpace) -> Iterator[Snapshot]:
    """A block that may move the weights; they come back bit for bit, also when it raises. Gives the snapshot."""
    before = space.snapshot()
    try:
        yield before
    finally:
        space.restore(before)


def part_of(progress: Progress | None, part: int, parts: int) -> Progress:
    """The progress of part number `part` (from 0) of `parts` equal ones, told as progress of the whole."""

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(round(WHOLE * (part + done / total) / parts), WHOLE)

    return report
