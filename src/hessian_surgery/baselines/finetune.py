"""Fine-tuning, the baseline that needs the training data: plain, reweighted or off the spikes."""

from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import nn

from hessian_surgery.baselines.training_run import EpochsConfig, loss_on_device, run_epoch, undisturbed
from hessian_surgery.baselines.training_state import fingerprint, load_moments, load_state, save_state
from hessian_surgery.baselines.training_step import Training, adam, recorded_step, start_training
from hessian_surgery.curvature.lanczos import STEPS_PER_SPIKE
from hessian_surgery.curvature.memory_plan import choose_storage
from hessian_surgery.curvature.search import NoSpikes, SpikeFinder, SpikeSearch
from hessian_surgery.data.labelled import Data, LabelledSet, as_labelled
from hessian_surgery.errors import InputError, require
from hessian_surgery.files import claimed
from hessian_surgery.model.classifier import Classifier, as_classifier
from hessian_surgery.model.evaluation import check_classifier
from hessian_surgery.model.head import find_head
from hessian_surgery.model.losses import Loss
from hessian_surgery.model.parameters import ParameterSpace, parameter_space, refuse_half_precision
from hessian_surgery.plain_modes import in_plain_modes
from hessian_surgery.short_repr import short_repr
from hessian_surgery.types import Progress

# Lanczos steps of the paper's projected fine-tuning, for nine spikes.
PROJECTED_STEPS = 30
# Classes are balanced if the largest has at most this many times the images of the smallest.
BALANCED = 1.1


@dataclass(frozen=True)
class FinetuneConfig(EpochsConfig):
    """How to fine-tune. The defaults are the paper's classic fine-tuning.

    Attributes:
        loss: cross-entropy, focal (γ = 2) or class-balanced (effective number, β = (N − 1) / N).
        epochs: passes over the training images, each in a new order.
        learning_rate: Adam's, constant.
        batch_size: images per step. An epoch skips the images at its end that do not fill a batch.
        head_epochs: how many of the epochs, the first ones, train only the head (the last linear
            layer). Adam then starts again on all weights.
        project: how to seek the spikes that each gradient is projected off; None projects nothing.
            They are found again, on a new batch of the training images and with this loss, at the
            start of each epoch. As in the paper, only the gradient is projected: Adam rescales it,
            so a step is not quite orthogonal to the spikes.
        seed: fixes every random draw.

    Example:
        >>> hs.FinetuneConfig(loss="focal", epochs=2)
        FinetuneConfig(loss='focal', epochs=2)
    """

    loss: str = "cross-entropy"
    epochs: int = 15
    learning_rate: float = 1e-4
    batch_size: int = 64
    seed: int = 0
    head_epochs: int = 0
    project: SpikeSearch | None = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = 0 <= self.head_epochs <= self.epochs
        require(fits, "head_epochs", self.head_epochs, f"between 0 and the number of epochs ({self.epochs})")
        searched = self.project is None or isinstance(self.project, SpikeSearch)
        require(searched, "project", self.project, "None or a SpikeSearch")


FINETUNES: dict[str, FinetuneConfig] = {
    "finetune": FinetuneConfig(),
    "focal": FinetuneConfig(loss="focal"),
    "class-balanced": FinetuneConfig(loss="class-balanced", head_epochs=5),
    "bulk": FinetuneConfig(project=SpikeSearch(hessian_samples=128)),
}


def choose_finetune(name: str, training: LabelledSet, spikes: int | None = None) -> FinetuneConfig:
    """A ready-made fine-tuning as it fits the training images.

    Class-balanced loss begins with the head alone, as the paper does on skin images; on balanced
    classes it is cross-entropy, and trains as such. The bulk is what is orthogonal to C − 1 spikes,
    found by the paper's 30 Lanczos steps if these are enough.

    Args:
        name: one of `FINETUNES`.
        training: the images to train on.
        spikes: how many spikes to project off, instead of C − 1.
    """
    config = FINETUNES[name]
    if config.project is not None:
        project = replace(config.project, spikes=spikes)
        enough = STEPS_PER_SPIKE * project.count(len(training.classes)) <= PROJECTED_STEPS
        return replace(config, project=replace(project, lanczos_steps=PROJECTED_STEPS if enough else None))
    balanced = training.counts.max() <= BALANCED * training.counts.min()
    return replace(config, head_epochs=0) if balanced else config


@dataclass(frozen=True)
class _Phase:
    """Epochs `first` to `last` − 1, which train the weights of `space`."""

    first: int
    last: int
    space: ParameterSpace


@dataclass(frozen=True)
class _Job:
    """A checked call of `finetune`."""

    classifier: Classifier
    config: FinetuneConfig
    train: LabelledSet
    loss: Loss
    phases: tuple[_Phase, ...]


@in_plain_modes
def finetune(
    model: nn.Module | Classifier,
    data: Data,
    config: FinetuneConfig,
    *,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> None:
    """Train the model's trainable weights further, in place and in training mode.

    BatchNorm's statistics move. Mode, requires_grad, .grad and the global random state are
    restored; so are weights and buffers if anything goes wrong. The images are read once and kept
    on the model's device. `config.project` changes nothing but the gradients: the images and their
    order stay the same.

    Args:
        model: weights in float32 or more; on a GPU the forward pass uses autocast to bfloat16.
        data: the training images, in any form that `as_labelled` takes.
        config: how to train.
        folder: where the state is saved after each epoch. A second call with the same model, data
            and config resumes from there and ends with the same weights (on a CPU bit for bit). If
            the run is finished, it only loads them.
        progress: called with (steps done, all steps) after each step.

    Raises:
        InputError: an argument is wrong, the folder holds another run, or the loss is no longer
            finite.

    Example:
        >>> hs.finetune(model, train, hs.FinetuneConfig(epochs=1, batch_size=32))
    """
    classifier = as_classifier(model)
    given = as_labelled(data)
    job = _prepare(classifier, given, config)
    choices = asdict(config) | {"project": config.project.as_dict() if config.project else None}
    identity = fingerprint(choices, classifier.module, given) if folder else ""
    with claimed(folder) if folder else nullcontext(), undisturbed(classifier):
        _run(job, folder, identity, progress)


def _prepare(classifier: Classifier, train: LabelledSet, config: FinetuneConfig) -> _Job:
    space = parameter_space(classifier.module)
    refuse_half_precision(space)
    check_classifier(classifier, train)
    config.check_size(train)
    loss = loss_on_device(config.loss, train, space.device)
    return _Job(classifier, config, train, loss, _phases(classifier, train, space, config))


def _phases(
    classifier: Classifier, train: LabelledSet, space: ParameterSpace, config: FinetuneConfig
) -> tuple[_Phase, ...]:
    everything = _Phase(config.head_epochs, config.epochs, space)
    if config.head_epochs == 0:
        return (everything,)
    head = find_head(classifier, train.fetch(torch.arange(2)))
    if head is None:
        raise InputError(
            f"head_epochs: got {config.head_epochs}, but no linear layer of the model gives its logits; give 0"
        )
    own = {id(parameter) for parameter in head.module.parameters()}
    rows = [row for row in zip(space.names, space.parameters, space.aliases, strict=True) if id(row[1]) in own]
    if not rows:
        raise InputError(f"head_epochs: got {config.head_epochs}, but the head {head.name!r} is frozen; give 0")
    names, parameters, aliases = zip(*rows, strict=True)
    return _Phase(0, config.head_epochs, ParameterSpace(names, parameters, aliases)), everything


def _run(job: _Job, folder: Path | None, identity: str, progress: Progress | None) -> None:
    config = job.config
    device = job.classifier.device
    done, moments = load_state(folder, job.classifier.module, identity) if folder else (0, {})
    if done == config.epochs:
        return
    train = job.train.resident(device)
    example = torch.arange(config.batch_size, device=device)
    for phase in job.phases:
        if done >= phase.last:
            continue
        finder = _spike_finder(job, phase.space)
        spikes = finder.count if finder else 0
        training = start_training(
            job.classifier, phase.space, job.loss, adam(phase.space, config.learning_rate), spikes
        )
        if done > phase.first:
            load_moments(training, moments)
        step = recorded_step(training, train.fetch(example), train.labels.to(device)[example])
        for epoch in range(done, phase.last):
            if finder is not None:
                _find_spikes(finder, training, epoch)
            run_epoch(training, step, train, config, epoch, "finetune", progress)
            done = epoch + 1
            if folder:
                save_state(folder, training, done, identity)


def _spike_finder(job: _Job, space: ParameterSpace) -> SpikeFinder | None:
    """What finds the spikes of each epoch, if gradients are projected off them."""
    if job.config.project is None:
        return None
    search = replace(job.config.project, redraw_hessian=True)
    count = search.count(len(job.train.classes))
    storage = choose_storage(space, count, steps=search.lanczos_steps, tolerance=search.tolerance)
    seed = job.config.seed
    return SpikeFinder(job.classifier, space, job.train, search, job.loss, count, storage, seed)


def _find_spikes(finder: SpikeFinder, training: Training, epoch: int) -> None:
    """Write the spikes at the present weights into the rows that the step projects off."""
    training.spikes.zero_()  # if fewer are positive, the remaining rows project off nothing
    try:
        found = finder.find(iteration=epoch)
    except NoSpikes:
        return
    for i in range(len(found)):
        training.spikes[i].copy_(found.vector(i))
