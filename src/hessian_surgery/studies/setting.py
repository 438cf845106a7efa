"""What the studies share: where spikes are sought, data to measure on, weights that come back, progress in parts."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from hessian_surgery.classifier import Classifier, as_classifier
from hessian_surgery.curvature.basis import Storage
from hessian_surgery.curvature.lanczos import Progress, Spectrum, lanczos
from hessian_surgery.curvature.memory import BasisPlace, BasisPrecision, describe_storage, plan_room
from hessian_surgery.curvature.operators import BatchOperator, Hessian
from hessian_surgery.data.labelled import Data, LabelledSet, as_labelled
from hessian_surgery.data.splits import hessian_batch
from hessian_surgery.errors import InputError
from hessian_surgery.evaluation import check_classifier
from hessian_surgery.losses import Loss
from hessian_surgery.parameters import ParameterSpace, Snapshot, parameter_space
from hessian_surgery.surgery.prepare import every_class, refuse_half_precision

LOG = logging.getLogger(__name__)
# What a bar counts to: parts of a study take unlike units, so the whole is told in thousandths.
WHOLE = 1000


@dataclass(frozen=True)
class Setting:
    """A classifier, one Hessian batch, and how spikes are sought on it.

    Attributes:
        classifier: the model; its present weights are where spikes are sought.
        space: the weights that spikes are directions of.
        batch: the Hessian batch, held on the model's device.
        loss: what is differentiated twice.
        spikes: K, at most.
        steps: m, exactly; None goes on until the K spikes have converged.
        tolerance: relative residual at which a spike has converged.
        seed: fixes the Lanczos start vector, the same at every call.
        storage: where the Lanczos basis is kept.
        micro_batch: images per part when the batch is streamed; None keeps it resident.
    """

    classifier: Classifier
    space: ParameterSpace
    batch: LabelledSet
    loss: Loss
    spikes: int
    steps: int | None
    tolerance: float
    seed: int
    storage: Storage
    micro_batch: int | None = None

    def operator(self, kind: Callable[..., BatchOperator]) -> BatchOperator:
        """A curvature operator at the present weights."""
        return kind(self.classifier, self.batch, self.space, self.loss, self.micro_batch)

    def hessian(self) -> BatchOperator:
        """The Hessian at the present weights."""
        return self.operator(Hessian)

    def find_spikes(self, operator: BatchOperator | None = None, progress: Progress | None = None) -> Spectrum:
        """The leading spikes at the present weights; at least one, at most K."""
        spectrum = lanczos(
            operator or self.hessian(),
            self.spikes,
            steps=self.steps,
            tolerance=self.tolerance,
            storage=self.storage if self.storage.rows >= (self.steps or 0) else None,
            seed=self.seed,
            progress=progress,
        )
        if len(spectrum) == 0:
            raise InputError("hessian_data: the Hessian has no positive eigenvalue here, so there is no spike to study")
        return spectrum


def spike_rows(spectrum: Spectrum) -> Tensor:
    """The spikes (K, p) where and as the weights' vectors are; a spectrum may keep them elsewhere, or rounded."""
    return spectrum.vectors.to(spectrum.space.device, spectrum.space.dtype)


def open_setting(
    model: nn.Module | Classifier,
    hessian_data: Data,
    *,
    samples: int,
    spikes: int,
    steps: int | None,
    tolerance: float,
    parameters: str,
    loss: Loss,
    seed: int,
    micro_batch: int | None = None,
    basis: BasisPlace = "auto",
    precision: BasisPrecision = "auto",
    basis_memory: float | None = None,
) -> Setting:
    """A `Setting` whose batch is `samples` images drawn once from `hessian_data`, and whose weights match a glob.

    Raises:
        InputError: it would not fit into memory; the message says what would.
    """
    classifier = as_classifier(model)
    space = parameter_space(classifier.module, parameters)
    refuse_half_precision(space)
    batch = hessian_batch(as_labelled(hessian_data), samples, seed=seed).resident(classifier.device)
    storage = plan_room(
        classifier,
        space,
        batch,
        min(micro_batch or len(batch), len(batch)),
        spikes,
        steps,
        tolerance,
        basis,
        precision,
        basis_memory,
    )
    LOG.info(describe_storage(storage, space))
    return Setting(classifier, space, batch, loss, spikes, steps, tolerance, seed, storage, micro_batch)


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
