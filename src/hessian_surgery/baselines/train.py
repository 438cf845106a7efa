"""Training from scratch, which makes the models that others operate on."""

import math
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from hessian_surgery.baselines.training_run import EpochsConfig, loss_on_device, run_epoch, undisturbed
from hessian_surgery.baselines.training_state import fingerprint, load_moments, load_state, save_state
from hessian_surgery.baselines.training_step import Step, recorded_step, sgd, start_training
from hessian_surgery.data import batches
from hessian_surgery.data.augment import augmented
from hessian_surgery.data.batches import Inputs
from hessian_surgery.data.labelled import Data, LabelledSet, as_labelled
from hessian_surgery.errors import require
from hessian_surgery.files import claimed
from hessian_surgery.model.classifier import Classifier, as_classifier
from hessian_surgery.model.evaluation import check_classifier
from hessian_surgery.model.parameters import parameter_space, refuse_half_precision
from hessian_surgery.plain_modes import in_plain_modes
from hessian_surgery.short_repr import short_repr
from hessian_surgery.types import Progress
from hessian_surgery.weights.tensorfile import weights_sha256

MOMENTUM = 0.9
# The share of all steps in which the learning rate rises from 0.
WARM_UP = 0.1


@dataclass(frozen=True)
class TrainConfig(EpochsConfig):
    """How to train from scratch: SGD with Nesterov's momentum.

    Attributes:
        loss: cross-entropy, focal (γ = 2) or class-balanced (effective number, β = (N − 1) / N).
        epochs: passes over the training images, each in a new order.
        learning_rate: the highest; it rises in the first steps and falls to 0 along half a cosine.
        batch_size: images per step. An epoch skips the images at its end that do not fill a batch.
        seed: fixes every random draw.
        weight_decay: times the weights, is added to the gradient.
        shift: largest shift of an image, in pixels, drawn again each time.
        flip: whether half of the images are mirrored, drawn again each time.

    Example:
        >>> hs.TrainConfig(loss="focal", shift=4, flip=True)
        TrainConfig(loss='focal', shift=4, flip=True)
    """

    loss: str = "cross-entropy"
    epochs: int = 60
    learning_rate: float = 0.05
    batch_size: int = 128
    seed: int = 0
    weight_decay: float = 5e-4
    shift: int = 0
    flip: bool = False

    __repr__ = short_repr

    def __post_init__(self) -> None:
        super().__post_init__()
        decay = self.weight_decay
        require(decay >= 0 and math.isfinite(decay), "weight_decay", decay, "0 or more")
        require(self.shift >= 0, "shift", self.shift, "0 or more")

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of step number `step`, from 0, of `steps`."""
        risen = min(1.0, (step + 1) / (WARM_UP * steps))
        return self.learning_rate * risen * (1 + math.cos(math.pi * step / steps)) / 2


@in_plain_modes
def train(
    model: nn.Module | Classifier,
    data: Data,
    config: TrainConfig,
    *,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> None:
    """Train the model's trainable weights from where they are, in place and in training mode.

    What `finetune` promises holds here too: everything but weights and buffers is restored, and
    after an error they are as well. The images are read once and kept on the model's device.

    Args:
        model: weights in float32 or more; on a GPU the forward pass uses autocast to bfloat16.
        data: the training images, in any form that `as_labelled` takes.
        config: how to train.
        folder: where the state is saved after each epoch. A second call with the same model, data
            and config resumes from there and ends with the same weights (on a CPU bit for bit).
        progress: called with (steps done, all steps) before the images are read, when they have
            been, and after each step.

    Raises:
        InputError: an argument is wrong, the folder holds another run, or the loss is no longer
            finite.

    Example:
        >>> hs.train(model, train, hs.TrainConfig(epochs=1, batch_size=32))
    """
    classifier = as_classifier(model)
    given = as_labelled(data)
    refuse_half_precision(parameter_space(classifier.module))
    check_classifier(classifier, given)
    config.check_size(given)
    images = given.noun == "images"
    require(images or not config.shift, "shift", config.shift, "0, as the samples are no images")
    require(images or not config.flip, "flip", config.flip, "False, as the samples are no images")
    identity = fingerprint(asdict(config) | {"first": _first(given)}, classifier.module, given) if folder else ""
    with claimed(folder) if folder else nullcontext(), undisturbed(classifier):
        _run(classifier, given, config, folder, identity, progress)


def _first(data: LabelledSet) -> str:
    """Hash the first sample, which tells images of another size or scale."""
    held = batches.tensors(data.fetch(torch.zeros(1, dtype=torch.int64)))
    return weights_sha256({str(i): tensor for i, tensor in enumerate(held)})


def _run(
    classifier: Classifier,
    given: LabelledSet,
    config: TrainConfig,
    folder: Path | None,
    identity: str,
    progress: Progress | None,
) -> None:
    device = classifier.device
    done, moments = load_state(folder, classifier.module, identity) if folder else (0, {})
    if done == config.epochs:
        return
    steps = len(given) // config.batch_size
    tell = progress or (lambda done, total: None)
    tell(done * steps, config.epochs * steps)
    resident = given.resident(device)
    space = parameter_space(classifier.module)
    rate = torch.zeros((), device=device)
    optimizer = sgd(space, rate, MOMENTUM, config.weight_decay)
    training = start_training(classifier, space, loss_on_device(config.loss, given, device), optimizer)
    if done:
        load_moments(training, moments)
    example = torch.arange(config.batch_size, device=device)
    inputs = _prepared(resident.fetch(example), config, device)
    step = recorded_step(training, inputs, resident.labels.to(device)[example])
    tell(done * steps, config.epochs * steps)
    for epoch in range(done, config.epochs):
        own = _scheduled(step, rate, config, epoch, steps)
        run_epoch(training, own, resident, config, epoch, "train", progress)
        if folder:
            save_state(folder, training, epoch + 1, identity)


def _scheduled(step: Step, rate: Tensor, config: TrainConfig, epoch: int, steps: int) -> Step:
    """The step of an epoch: it sets the learning rate, and augments the images."""
    numbers = iter(range(epoch * steps, (epoch + 1) * steps))

    def scheduled(inputs: Inputs, labels: Tensor) -> None:
        rate.fill_(config.rate(next(numbers), config.epochs * steps))
        step(_prepared(inputs, config, rate.device), labels)

    return scheduled


def _prepared(inputs: Inputs, config: TrainConfig, device: torch.device) -> Inputs:
    """A batch as the model is shown it: augmented, and on a GPU with channels innermost."""
    if config.shift or config.flip:
        inputs = augmented(inputs, config.shift, config.flip)
    return batches.channels_last(inputs) if device.type == "cuda" else inputs
