"""Fine-tuning, the rival of surgery that goes back to the training data: plain, reweighted, or projected off spikes."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import torch
from torch import nn

from hessian_surgery.baselines.training_state import fingerprint, load_moments, load_state, own_tensors, save_state
from hessian_surgery.baselines.training_step import Step, Training, recorded_step, start_training
from hessian_surgery.curvature.hessian import Hessian
from hessian_surgery.curvature.lanczos import lanczos
from hessian_surgery.data.labelled import Data, LabelledSet, as_labelled
from hessian_surgery.data.splits import hessian_batch, stratified_split
from hessian_surgery.errors import InputError
from hessian_surgery.files import claimed
from hessian_surgery.model.classifier import Classifier, as_classifier, deterministic_kernels
from hessian_surgery.model.evaluation import check_classifier
from hessian_surgery.model.head import find_head
from hessian_surgery.model.losses import Loss, LossName, make_loss
from hessian_surgery.model.parameters import ParameterSpace, parameter_space
from hessian_surgery.operation.problem import refuse_half_precision
from hessian_surgery.seeding import generator
from hessian_surgery.types import Progress

TRAINED_PART = 0.9  # of each class, where the rest is held out for the spikes


def _require(holds: bool, name: str, value: object, needed: str) -> None:
    if not holds:
        raise InputError(f"{name}: got {value!r}; it must be {needed}")


@dataclass(frozen=True)
class FinetuneConfig:
    """How to fine-tune. The defaults are the paper's classic fine-tuning.

    Attributes:
        loss: cross-entropy, focal (γ = 2), or class-balanced (effective number, β = (N − 1) / N).
        epochs: passes over the training images, each in an order of its own.
        learning_rate: Adam's, constant.
        batch_size: images per step; what is left over at an epoch's end waits for the next epoch's order.
        head_epochs: of the epochs, how many at first train the head (the last linear layer) alone; then Adam starts
            anew on all weights.
        project: K, the spikes whose span the gradient is projected off; they are found anew at the start of each epoch.
            Adam then scales each weight's gradient by its own history, so that a step is no longer quite orthogonal to
            them: the projection is of the gradient, as in the paper.
        spike_steps: m, Lanczos steps for the spikes.
        spike_samples: n, images in the Hessian batch, drawn anew each epoch.
        seed: fixes every random draw.
    """

    loss: LossName = "cross-entropy"
    epochs: int = 15
    learning_rate: float = 1e-4
    batch_size: int = 64
    head_epochs: int = 0
    project: int = 0
    spike_steps: int = 30
    spike_samples: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        rate, losses = self.learning_rate, get_args(LossName)
        _require(self.loss in losses, "loss", self.loss, f"one of {', '.join(losses)}")
        _require(self.epochs >= 1, "epochs", self.epochs, "at least 1")
        _require(rate > 0 and math.isfinite(rate), "learning_rate", rate, "a positive number")
        _require(self.batch_size >= 2, "batch_size", self.batch_size, "at least 2, for BatchNorm to have a variance")
        fits = 0 <= self.head_epochs <= self.epochs
        _require(fits, "head_epochs", self.head_epochs, f"between 0 and the number of epochs ({self.epochs})")
        _require(self.project >= 0, "project", self.project, "0 or more")
        enough = self.spike_steps >= max(1, self.project)
        _require(enough, "spike_steps", self.spike_steps, f"at least 1 and as many as project ({self.project})")
        _require(self.spike_samples >= 1, "spike_samples", self.spike_samples, "at least 1")
        _require(self.seed >= 0, "seed", self.seed, "0 or more")


FINETUNES: dict[str, FinetuneConfig] = {
    "finetune": FinetuneConfig(),
    "focal": FinetuneConfig(loss="focal"),
    "class-balanced": FinetuneConfig(loss="class-balanced", head_epochs=5),
    "bulk": FinetuneConfig(project=9),
}


@dataclass(frozen=True)
class _Phase:
    """Epochs first..last-1, in which the weights of `space` are trained."""

    first: int
    last: int
    space: ParameterSpace


@dataclass(frozen=True)
class _Job:
    classifier: Classifier
    config: FinetuneConfig
    train: LabelledSet
    held: LabelledSet | None
    loss: Loss
    phases: tuple[_Phase, ...]

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return len(self.train) // self.config.batch_size


def finetune(
    model: nn.Module | Classifier,
    data: Data,
    config: FinetuneConfig,
    *,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> None:
    """Train the model's trainable weights further, in place, in training mode (BatchNorm's statistics move).

    Mode, requires_grad, .grad and the global random state come back as they were; so do weights and buffers if anything
    goes wrong. The images are read once and held on the model's device. With `config.project` nine tenths of each class
    are trained on and the spikes come from the rest.

    Args:
        model: weights in float32 or more; on a GPU the forward pass runs in bfloat16 where autocast allows it.
        data: the training images, in any form that `as_labelled` takes.
        config: how.
        folder: where the state is kept after each epoch. Called again with the same model, data and config, the run
            goes on from there and ends with the same weights (on a CPU bit for bit), or is already finished.
        progress: called with (steps done, steps in all) after each step.

    Raises:
        InputError: an argument is at fault, the folder holds another run, or the loss is no longer finite.
    """
    classifier, given = as_classifier(model), as_labelled(data)
    module, device = classifier.module, classifier.device
    job = _prepare(classifier, given, config)
    identity = fingerprint(asdict(config), module, given) if folder else ""
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
    train, held = given, None
    if config.project:
        train, held = stratified_split(given, (TRAINED_PART, 1 - TRAINED_PART), config.seed)
        few = f"data with more than {len(given)} images: no class has enough for a tenth of it to be held out"
        _require(len(held) > 0, "project", config.project, f"0, or given {few}")
    fits = config.batch_size <= len(train)
    _require(fits, "batch_size", config.batch_size, f"at most the number of training images ({len(train)})")
    # On the GPU from the start: a recorded step cannot fetch the class weights from the host.
    counts = train.counts.cuda(space.device) if space.device.type == "cuda" else train.counts
    loss = make_loss(config.loss, counts)
    return _Job(classifier, config, train, held, loss, _phases(classifier, train, space, config))


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
    chosen = {id(parameter) for parameter in head.module.parameters()}
    rows = [row for row in zip(space.names, space.parameters, space.aliases, strict=True) if id(row[1]) in chosen]
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
    config, device = job.config, job.classifier.device
    done, moments = load_state(folder, job.classifier.module, identity) if folder else (0, {})
    if done == config.epochs:
        return
    train = job.train.resident(device)
    example = torch.arange(config.batch_size, device=device)
    for phase in job.phases:
        if done >= phase.last:
            continue
        training = start_training(job.classifier, phase.space, job.loss, config.learning_rate, config.project)
        if done > phase.first:
            load_moments(training, moments)
        step = recorded_step(training, train.fetch(example), train.labels.to(device)[example])
        for epoch in range(done, phase.last):
            if job.held is not None:
                _find_spikes(job, job.held, training, epoch)
            _train_epoch(job, train, training, step, epoch, progress)
            done = epoch + 1
            if folder:
                save_state(folder, training, done, identity)


def _find_spikes(job: _Job, held: LabelledSet, training: Training, epoch: int) -> None:
    """The leading directions at the present weights, into the rows that the step projects off."""
    config = job.config
    batch = hessian_batch(held, config.spike_samples, seed=config.seed, iteration=epoch)
    operator = Hessian(job.classifier, batch, training.space, job.loss)
    found = lanczos(operator, config.project, steps=config.spike_steps, seed=config.seed, iteration=epoch)
    training.spikes.zero_()  # where fewer are positive, the rows that are left take nothing away
    for i in range(len(found)):
        training.spikes[i].copy_(found.vector(i))


def _train_epoch(
    job: _Job, train: LabelledSet, training: Training, step: Step, epoch: int, progress: Progress | None
) -> None:
    config, device = job.config, job.classifier.device
    draw = generator(config.seed, "finetune", epoch)
    order = torch.randperm(len(train), generator=draw)[: job.steps * config.batch_size].to(device)
    _seed(device, int(torch.randint(2**62, (), generator=draw)))
    labels = train.labels.to(device)
    training.total.zero_()
    for i, chosen in enumerate(order.split(config.batch_size), start=1):
        step(train.fetch(chosen), labels[chosen])
        if progress is not None:
            progress(epoch * job.steps + i, config.epochs * job.steps)
    # Asked for once an epoch: asking after each step would keep a GPU waiting. What is not finite stays so in a sum.
    if not torch.isfinite(training.total):
        raise InputError(
            f"learning_rate: got {config.learning_rate:g}, and the loss in epoch {epoch + 1} is "
            f"{training.total.item()}; give a lower rate, or check the images and the weights"
        )


def _seed(device: torch.device, seed: int) -> None:
    """Seed what dropout draws from, on this device and the CPU alone."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
