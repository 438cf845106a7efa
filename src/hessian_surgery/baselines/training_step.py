"""One step of training, plain or replayed from a CUDA graph."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from hessian_surgery.cuda_graphs import can_record, record
from hessian_surgery.data import batches
from hessian_surgery.data.batches import Inputs
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.losses import Loss
from hessian_surgery.model.parameters import ParameterSpace

Step: TypeAlias = Callable[[Inputs, Tensor], None]

# Steps before a recording, as PyTorch advises for training.
WARM_UP = 3


@dataclass(frozen=True)
class Training:
    """What a step works on. All its tensors keep their place in memory, where a replay finds them.

    Attributes:
        classifier: the model, in training mode.
        space: the weights that are trained; the others must not require gradients.
        loss: a function of logits and labels, a mean over the samples.
        optimizer: over the weights of `space`, with its state already made.
        spikes: (K, p) orthonormal rows that are taken out of the gradient; rows of zeros change
            nothing.
        total: () the sum of the steps' losses since it was last set to zero.
    """

    classifier: Classifier
    space: ParameterSpace
    loss: Loss
    optimizer: torch.optim.Optimizer
    spikes: Tensor
    total: Tensor

    @property
    def moments(self) -> dict[str, Tensor]:
        """The optimizer's state of each weight, such as momentum, by names for a file."""
        states = [self.optimizer.state[parameter] for parameter in self.space.parameters]
        return {f"optimizer.{i:06d}.{key}": value for i, state in enumerate(states) for key, value in state.items()}


def adam(space: ParameterSpace, learning_rate: float) -> torch.optim.Adam:
    """Adam on the weights of `space`."""
    on_gpu = space.device.type == "cuda"
    optimizer = torch.optim.Adam(space.parameters, lr=learning_rate, foreach=on_gpu, capturable=on_gpu)
    # A step along gradients of zero makes Adam's state and moves nothing. Then count from 0 again.
    for parameter in space.parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for parameter in space.parameters:
        optimizer.state[parameter]["step"].zero_()
    return optimizer


def sgd(space: ParameterSpace, rate: Tensor, momentum: float, weight_decay: float) -> torch.optim.SGD:
    """SGD with Nesterov's momentum on the weights of `space`.

    Args:
        space: the weights.
        rate: () float32 on their device, the learning rate; who changes it in place changes that of
            a replayed step too.
        momentum: share of the last step that is kept.
        weight_decay: times the weights, is added to the gradient.
    """
    on_gpu = space.device.type == "cuda"
    optimizer = torch.optim.SGD(
        space.parameters, lr=rate, momentum=momentum, nesterov=True, weight_decay=weight_decay, fused=on_gpu
    )
    for parameter in space.parameters:
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def start_training(
    classifier: Classifier, space: ParameterSpace, loss: Loss, optimizer: torch.optim.Optimizer, spikes: int = 0
) -> Training:
    """Start on the weights of `space`, which alone require gradients from here on."""
    classifier.module.requires_grad_(False)
    for parameter in space.parameters:
        parameter.requires_grad_(True)
    return Training(
        classifier.as_inputs_come(),
        space,
        loss,
        optimizer,
        spikes=torch.zeros(spikes, space.dimension, dtype=space.dtype, device=space.device),
        total=torch.zeros((), dtype=space.dtype, device=space.device),
    )


def step(training: Training, inputs: Inputs, labels: Tensor) -> None:
    """Take one step on a batch; on a GPU the forward pass uses autocast to bfloat16."""
    device = training.space.device
    # None, not zeros: the backward pass then allocates gradients, in the memory of a recording.
    training.optimizer.zero_grad(set_to_none=True)
    # Autocast's cache is off: a replay would not cast the weights again.
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False):
        logits = training.classifier.logits(inputs)
    loss = training.loss(logits.to(training.space.dtype), labels)
    loss.backward()
    if len(training.spikes):
        project(training.space, training.spikes)
    training.optimizer.step()
    training.total.add_(loss.detach())


@torch.no_grad()
def project(space: ParameterSpace, spikes: Tensor) -> None:
    """g ← g − Qᵀ(Q g), where g is the .grad of all weights as one vector and Q `spikes` (K, p)."""
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in space.parameters]
    flat = space.flatten(gradients)
    for gradient, piece in zip(gradients, space.split(spikes.T @ (spikes @ flat)), strict=True):
        gradient.sub_(piece)


def recorded_step(training: Training, inputs: Inputs, labels: Tensor) -> Step:
    """The step, replayed from a CUDA graph if that is possible; on return nothing has moved.

    Args:
        training: what the step works on.
        inputs: a batch on the device, of the size that all batches will have.
        labels: its labels (n,), also on the device.
    """
    plain: Step = partial(step, training)
    device = training.space.device
    if not can_record(device):
        return plain
    held = batches.map_tensors(torch.clone, inputs)
    held_labels = labels.clone()
    module = training.classifier.module
    moving = [*training.space.parameters, *module.buffers(), *training.moments.values(), training.total]
    before = [tensor.detach().clone() for tensor in moving]
    try:
        recording = record(lambda: plain(held, held_labels), device, WARM_UP)
    finally:
        with torch.no_grad():
            for tensor, saved in zip(moving, before, strict=True):
                tensor.copy_(saved)
    if recording is None:
        return plain
    graph, _ = recording

    def replay(inputs: Inputs, labels: Tensor) -> None:
        # Texts are padded to the longest of their batch.
        if [t.shape for t in batches.tensors(held)] != [t.shape for t in batches.tensors(inputs)]:
            plain(inputs, labels)
            return
        for here, new in zip(batches.tensors(held), batches.tensors(inputs), strict=True):
            here.copy_(new)
        held_labels.copy_(labels)
        graph.replay()

    return replay
