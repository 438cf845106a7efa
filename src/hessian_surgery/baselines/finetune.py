"""Fine-tuning, the baseline that needs the training data: plain, reweighted or off the spikes."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import get_args

import torch
from torch import nn

from hessian_surgery.baselines.training_state import fingerprint, load_moments, load_state, own_tensors, save_state
from hessian_surgery.baselines.training_step import Step, Training, recorded_step, start_training
from hessian_surgery.curvature.memory_plan import choose_storage
from hessian_surgery.curvature.search import NoSpikes, SpikeFinder, SpikeSearch
from hessian_surgery.data.labelled import Data, LabelledSet, as_labelled
from hessian_surgery.data.splits import stratified_split
from hessian_surgery.errors import InputError, require
from hessian_surgery.files import claimed
from hessian_surgery.model.classifier import Classifier, as_classifier, deterministic_kernels
from hessian_surgery.model.evaluation import check_classifier
from hessian_surgery.model.head import find_head
from hessian_surgery.model.losses import Loss, LossName, make_loss
from hessian_surgery.model.parameters import ParameterSpace, parameter_space, refuse_half_precision
from hessian_surgery.seeding import generator
from hessian_surgery.short_repr import short_repr
from hessian_surgery.types import Progress

# With `FinetuneConfig.project`, the share of each class to train on; the spikes come from the rest.
TRAINED_SHARE = 0.9


@dataclass(frozen=True)
class FinetuneConfig:
    """How to fine-tune. The defaults are the paper's classic fine-tuning.

    Attributes:
        loss: cross-entropy, focal (γ = 2) or class-balanced (effective number, β = (N − 1) / N).
        epochs: passes over the training images, each in a new order.
        learning_rate: Adam's, constant.
        batch_size: images per step. An epoch skips the images at its end that do not fill a batch.
        head_epochs: how many of the epochs, the first ones, train only the head (the last linear
            layer). Adam then starts again on all weights.
        project: how to seek the spikes that each gradient is projected off; None projects nothing.
            They are found again, on a new batch and with this loss, at the start of each epoch. As
            in the paper, only the gradient is projected: Adam rescales it, so a step is not quite
            orthogonal to the spikes.
        seed: fixes every random draw.

    Example:
        >>> hs.FinetuneConfig(loss="focal", epochs=2)
        FinetuneConfig(loss='focal', epochs=2)
    """

    loss: LossName = "cross-entropy"
    epochs: int = 15
    learning_rate: float = 1e-4
    batch_size: int = 64
    head_epochs: int = 0
    project: SpikeSearch | None = None
    seed: int = 0

    __repr__ = short_repr

    def __post_init__(self) -> None:
        rate = self.learning_rate
        losses = get_args(LossName)
        require(self.loss in losses, "loss", self.loss, f"one of {', '.join(losses)}")
        require(self.epochs >= 1, "epochs", self.epochs, "at least 1")
        require(rate > 0 and math.isfinite(rate), "learning_rate", rate, "a positive number")
        require(self.batch_size >= 2, "batch_size", self.batch_size, "at least 2: BatchNorm needs a variance")
        fits = 0 <= self.head_epochs <= self.epochs
        require(fits, "head_epochs", self.head_epochs, f"between 0 and the number of epochs ({self.epochs})")
        searched = self.project is None or isinstance(self.project, SpikeSearch)
        require(searched, "project", self.project, "None or a SpikeSearch")
        require(self.seed >= 0, "seed", self.seed, "0 or more")


FINETUNES: dict[str, FinetuneConfig] = {
    "finetune": FinetuneConfig(),
    "focal": FinetuneConfig(loss="focal"),
    "class-balanced": FinetuneConfig(loss="class-balanced", head_epochs=5),
    "bulk": FinetuneConfig(project=SpikeSearch(spikes=9, lanczos_steps=30, hessian_samples=128)),
}


@dataclass(frozen=True)
class _Phase:
    """Epochs `first` to `last` − 1, which train the weights of `space`."""

    first: int
    last: int
    space: ParameterSpace


@dataclass(frozen=True)
class _Job:
    """A checked call of `finetune`; the spikes come from `spike_data`, if they are asked for."""

    classifier: Classifier
    config: FinetuneConfig
    train: LabelledSet
    spike_data: LabelledSet | None
    loss: Loss
    phases: tuple[_Phase, ...]

    @property
    def steps(self) -> int:
        """Return the number of steps in an epoch."""
        return len(self.train) // self.config.batch_size


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
    on the model's device. With `config.project`, nine tenths of each class are trained on and the
    spikes come from the rest.

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
    module = classifier.module
    device = classifier.device
    job = _prepare(classifier, given, config)
    choices = asdict(config) | {"project": config.project.as_dict() if config.project else None}
    identity = fingerprint(choices, module, given) if folder else ""
    forked = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    with claimed(folder) if folder else nullcontext(), _training_mode(module), forked, deterministic_kernels():
        before = {name: tensor.detach().clone() for name, tensor in own_tensors(module).items()}
        try:
            _run(job, folder, identity, progress)
        except BaseException:
            with torch.no_grad():
                for name, tensor in own_tensors(module).items():
                    tensor.copy_(before[name])
            raise


def _prepare(classifier: Classifier, given: LabelledSet, config: FinetuneConfig) -> _Job:
    space = parameter_space(classifier.module)
    refuse_half_precision(space)
    check_classifier(classifier, given)
    train = given
    spike_data = None
    if config.project is not None:
        train, spike_data = stratified_split(given, (TRAINED_SHARE, 1 - TRAINED_SHARE), config.seed)
        if len(spike_data) == 0:
            raise InputError(
                f"project: with {len(given)} images no class has a tenth to spare for the spikes; give None"
            )
    fits = config.batch_size <= len(train)
    require(fits, "batch_size", config.batch_size, f"at most the number of training images ({len(train)})")
    # On the GPU now, because a recorded step cannot fetch the class weights from the host.
    counts = train.counts.cuda(space.device) if space.device.type == "cuda" else train.counts
    loss = make_loss(config.loss, counts)
    return _Job(classifier, config, train, spike_data, loss, _phases(classifier, train, space, config))


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


@contextmanager
def _training_mode(module: nn.Module) -> Iterator[None]:
    modes = [(layer, layer.training) for layer in module.modules()]
    parameters = [(p, p.grad, p.requires_grad) for p in module.parameters()]
    module.train()
    try:
        with torch.enable_grad():
            yield
    finally:
        for layer, training in modes:
            layer.training = training
        for parameter, grad, requires_grad in parameters:
            parameter.requires_grad_(requires_grad)
            parameter.grad = grad


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
        training = start_training(job.classifier, phase.space, job.loss, config.learning_rate, spikes)
        if done > phase.first:
            load_moments(training, moments)
        step = recorded_step(training, train.fetch(example), train.labels.to(device)[example])
        for epoch in range(done, phase.last):
            if finder is not None:
                _find_spikes(finder, training, epoch)
            _train_epoch(job, train, training, step, epoch, progress)
            done = epoch + 1
            if folder:
                save_state(folder, training, done, identity)


def _spike_finder(job: _Job, space: ParameterSpace) -> SpikeFinder | None:
    """What finds the spikes of each epoch, if gradients are projected off them."""
    if job.config.project is None or job.spike_data is None:
        return None
    search = replace(job.config.project, redraw_hessian=True)
    count = search.count(len(job.train.classes))
    storage = choose_storage(space, count, steps=search.lanczos_steps, tolerance=search.tolerance)
    seed = job.config.seed
    return SpikeFinder(job.classifier, space, job.spike_data, search, job.loss, count, storage, seed)


def _find_spikes(finder: SpikeFinder, training: Training, epoch: int) -> None:
    """Write the spikes at the present weights into the rows that the step projects off."""
    training.spikes.zero_()  # if fewer are positive, the remaining rows project off nothing
    try:
        found = finder.find(iteration=epoch)
    except NoSpikes:
        return
    for i in range(len(found)):
        training.spikes[i].copy_(found.vector(i))


def _train_epoch(
    job: _Job, train: LabelledSet, training: Training, step: Step, epoch: int, progress: Progress | None
) -> None:
    config = job.config
    device = job.classifier.device
    draw = generator(config.seed, "finetune", epoch)
    order = torch.randperm(len(train), generator=draw)[: job.steps * config.batch_size].to(device)
    _seed(device, int(torch.randint(2**62, (), generator=draw)))
    labels = train.labels.to(device)
    training.total.zero_()
    for i, positions in enumerate(order.split(config.batch_size), start=1):
        step(train.fetch(positions), labels[positions])
        if progress is not None:
            progress(epoch * job.steps + i, config.epochs * job.steps)
    # Read once an epoch, because reading it after each step would keep a GPU waiting. Once a sum is
    # infinite or NaN, it stays so.
    if not torch.isfinite(training.total):
        raise InputError(
            f"learning_rate: got {config.learning_rate:g}, and the loss in epoch {epoch + 1} is "
            f"{training.total.item()}; give a lower rate, or check the images and the weights"
        )


def _seed(device: torch.device, seed: int) -> None:
    """Seed the generators that dropout draws from: only this device's and the CPU's."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
