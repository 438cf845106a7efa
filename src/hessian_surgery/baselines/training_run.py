"""What fine-tuning and training from scratch share: a safe frame, and one epoch."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from hessian_surgery.baselines.training_state import own_tensors
from hessian_surgery.baselines.training_step import Step, Training
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.errors import InputError, require
from hessian_surgery.model.classifier import Classifier, deterministic_kernels
from hessian_surgery.model.losses import Loss, check_loss, make_loss
from hessian_surgery.seeding import generator
from hessian_surgery.short_repr import short_repr
from hessian_surgery.type_check import require_types
from hessian_surgery.types import Progress


@dataclass(frozen=True)
class EpochsConfig:
    """What every training has; `FinetuneConfig` and `TrainConfig` say what each means."""

    loss: str
    epochs: int
    learning_rate: float
    batch_size: int
    seed: int

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_types(self)
        rate = self.learning_rate
        check_loss(self.loss)
        require(self.epochs >= 1, "epochs", self.epochs, "at least 1")
        require(rate > 0 and math.isfinite(rate), "learning_rate", rate, "a positive number")
        require(self.batch_size >= 2, "batch_size", self.batch_size, "at least 2: BatchNorm needs a variance")
        require(self.seed >= 0, "seed", self.seed, "0 or more")

    def check_size(self, train: LabelledSet) -> None:
        """Raise an InputError if the images do not fill a batch."""
        fits = self.batch_size <= len(train)
        require(fits, "batch_size", self.batch_size, f"at most the number of training images ({len(train)})")


def loss_on_device(name: str, train: LabelledSet, device: torch.device) -> Loss:
    """The loss; its class weights are on a GPU now: a recorded step cannot fetch them later."""
    return make_loss(name, train.counts.cuda(device) if device.type == "cuda" else train.counts)


@contextmanager
def undisturbed(classifier: Classifier) -> Iterator[None]:
    """Training mode, with gradients and deterministic kernels, in this block.

    Mode, requires_grad, .grad and the global random state come back; after an error weights and
    buffers too.
    """
    module = classifier.module
    device = classifier.device
    forked = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    with _training_mode(module), forked, deterministic_kernels():
        before = {name: tensor.detach().clone() for name, tensor in own_tensors(module).items()}
        try:
            yield
        except BaseException:
            with torch.no_grad():
                for name, tensor in own_tensors(module).items():
                    tensor.copy_(before[name])
            raise


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


def run_epoch(
    training: Training,
    step: Step,
    train: LabelledSet,
    config: EpochsConfig,
    epoch: int,
    stage: str,
    progress: Progress | None,
) -> None:
    """Pass over the images once, in a new order; those that fill no batch are skipped.

    Args:
        training: what the step works on.
        step: takes a batch and its labels, on the device.
        train: the images, resident on the device.
        config: batch size, seed and number of epochs.
        epoch: number of the epoch, from 0.
        stage: with seed and epoch, fixes the order and what random layers draw.
        progress: called with (steps done, steps of all epochs) after each step.

    Raises:
        InputError: the loss is not finite.
    """
    device = training.space.device
    steps = len(train) // config.batch_size
    draw = generator(config.seed, stage, epoch)
    order = torch.randperm(len(train), generator=draw)[: steps * config.batch_size].to(device)
    _seed(device, int(torch.randint(2**62, (), generator=draw)))
    labels = train.labels.to(device)
    training.total.zero_()
    for i, positions in enumerate(order.split(config.batch_size), start=1):
        step(train.fetch(positions), labels[positions])
        if progress is not None:
            progress(epoch * steps + i, config.epochs * steps)
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
