"""One step of training, and the same step recorded as a CUDA graph: at small batches launching costs most of it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from hessian_surgery.data import batches
from hessian_surgery.data.batches import Inputs
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.losses import Loss
from hessian_surgery.model.parameters import ParameterSpace

Step: TypeAlias = Callable[[Inputs, Tensor], None]

WARM_UP = 3
# Devices on which a recording has failed: each failure costs memory that is not given back, so it is not tried again.
_refused: set[torch.device] = set()


@dataclass(frozen=True)
class Training:
    """What a step works on; all its tensors keep their place in memory, so that a recorded step finds them.

    Attributes:
        classifier: the model, in training mode.
        space: the weights that are trained; the others must not ask for gradients.
        loss: of logits and labels, a mean over the samples.
        optimizer: Adam over the weights of `space`, its state already made.
        spikes: (K, p) orthonormal rows that the gradient is projected off; rows of zeros change nothing.
        total: () the sum of the losses of the steps since it was last set to zero.
    """

    classifier: Classifier
    space: ParameterSpace
    loss: Loss
    optimizer: torch.optim.Adam
    spikes: Tensor
    total: Tensor

    @property
    def moments(self) -> dict[str, Tensor]:
        """Adam's state: step, exp_avg and exp_avg_sq of each weight, by names that a file can hold."""
        states = [self.optimizer.state[parameter] for parameter in self.space.parameters]
        return {f"adam.{i:06d}.{key}": value for i, state in enumerate(states) for key, value in state.items()}


def start_training(
    classifier: Classifier, space: ParameterSpace, loss: Loss, learning_rate: float, spikes: int
) -> Training:
    """Adam's beginning on the weights of `space`, the only ones that ask for gradients from here on."""
    classifier.module.requires_grad_(False)
    for parameter in space.parameters:
        parameter.requires_grad_(True)
    on_gpu = space.device.type == "cuda"
    optimizer = torch.optim.Adam(space.parameters, lr=learning_rate, foreach=on_gpu, capturable=on_gpu)
    # A step along gradients of zero makes Adam's state and moves nothing; then it is step 0 again.
    for parameter in space.parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for parameter in space.parameters:
        optimizer.state[parameter]["step"].zero_()
    return Training(
        classifier,
        space,
        loss,
        optimizer,
        spikes=torch.zeros(spikes, space.dimension, dtype=space.dtype, device=space.device),
        total=torch.zeros((), dtype=space.dtype, device=space.device),
    )


def step(training: Training, inputs: Inputs, labels: Tensor) -> None:
    """One step of Adam on a batch; on a GPU the forward pass is in bfloat16 where autocast allows it."""
    device = training.space.device
    # None, not zeros: the backward pass then makes the gradients anew, in a recording in the recording's own memory.
    training.optimizer.zero_grad(set_to_none=True)
    # Without autocast's cache, whose casts of the weights a recording would not make again.
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
    """g ← g − Qᵀ(Q g) in each weight's .grad, g being all of them as one vector and Q `spikes` (K, p)."""
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in space.parameters]
    flat = space.flatten(gradients)
    for gradient, piece in zip(gradients, space.split(spikes.T @ (spikes @ flat)), strict=True):
        gradient.sub_(piece)


def recorded(training: Training, inputs: Inputs, labels: Tensor) -> Step:
    """The step, replayed from a CUDA graph where the device and the model allow it; nothing has moved on return.

    What cannot be recorded (a layer that asks the GPU for a number in the middle) is run as it is.

    Args:
        training: what the step works on.
        inputs: a batch of the size that all will have, on the device.
        labels: its labels (n,), there too.
    """
    plain: Step = partial(step, training)
    device = training.space.device
    if not _can_record(device):
        return plain
    held, held_labels = batches.map_tensors(torch.clone, inputs), labels.clone()
    module = training.classifier.module
    moving = [*training.space.parameters, *module.buffers(), *training.moments.values(), training.total]
    before = [tensor.detach().clone() for tensor in moving]
    try:
        graph = _record(lambda: plain(held, held_labels), device)
    finally:
        with torch.no_grad():
            for tensor, saved in zip(moving, before, strict=True):
                tensor.copy_(saved)
    if graph is None:
        return plain

    def replay(inputs: Inputs, labels: Tensor) -> None:
        for here, new in zip(batches.tensors(held), batches.tensors(inputs), strict=True):
            here.copy_(new)
        held_labels.copy_(labels)
        graph.replay()

    return replay


def _can_record(device: torch.device) -> bool:
    return device.type == "cuda" and device not in _refused


def _record(work: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph | None:
    """The work as a graph, after some rounds on a side stream, as PyTorch asks; None where it cannot be recorded."""
    stream, present = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    stream.wait_stream(present)
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            work()  # what is wrong with the work itself shows here
    present.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        # The outer context brings the present stream back, which a failed recording does not.
        with torch.cuda.stream(present), torch.cuda.graph(graph, stream=stream):
            work()
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        _refused.add(device)
        # A failed recording leaves the generator waiting for its end, and random layers fail; a copy is free of that.
        generator = torch.cuda.default_generators[device.index or 0]
        generator.graphsafe_set_state(generator.clone_state())
        return None
    return graph
