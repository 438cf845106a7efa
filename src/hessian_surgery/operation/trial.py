"""A short trial of an operation's passes: seconds and memory of each, on the first images."""

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hessian_surgery.curvature.memory import Watch
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.directions.family import Probe
from hessian_surgery.directions.logit_changes import largest_batch
from hessian_surgery.directions.refit import PULL
from hessian_surgery.evidence.leading_outputs import leading_outputs
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import BATCH_SIZE, compute_logits
from hessian_surgery.model.freed_memory import give_back
from hessian_surgery.model.head import Head
from hessian_surgery.model.head_fit import head_objective
from hessian_surgery.model.parameters import ParameterSpace
from hessian_surgery.operation.coefficient_fit import PRICES
from hessian_surgery.operation.crossfit import FOLDS
from hessian_surgery.operation.surrogate import Surrogate
from hessian_surgery.ranks import alone, present
from hessian_surgery.types import Progress

# Images of a forward pass on a CPU. On a GPU all passes have the size that an operation gives them.
IMAGES = 64
# Images of the fits, at least; with fewer, overhead would count for too much.
FITTED = 512
# Images of a head's fit, at most; its cost is hardly in the images if there are few.
HEAD_IMAGES = 2000


@dataclass(frozen=True)
class Pass:
    """What one kind of work takes.

    Attributes:
        images: how many images it was tried on.
        seconds: for each image.
        nbytes: the most that was held at a time beside the weights, the images and the result.
        fixed: bytes that do not grow with the images: on a CPU, convolutions rearrange what they
            take.
    """

    images: int
    seconds: float
    nbytes: int
    fixed: int = 0

    def at(self, images: int) -> int:
        """The bytes of a batch of so many images."""
        return self.nbytes * images // self.images + self.fixed


@dataclass(frozen=True)
class Trial:
    """What an operation's work takes on this machine.

    Attributes:
        forward: a forward pass.
        gradient: a forward and a backward pass of a batch of `MICRO` images.
        slope: the logits' derivatives along one direction; on a CPU a forward pass.
        fit: one evaluation of all fits to the calibration images.
        vector: seconds that each direction takes when a step is made.
        head: seconds for each image of one evaluation of a head's fit and of its temperature's; 0
            if no head is fitted.
    """

    forward: Pass
    gradient: Pass
    slope: Pass
    fit: Pass
    vector: float
    head: float = 0.0

    def shared_by(self, ranks: int) -> "Trial":
        """The same where so many ranks take turns at batches of images; each fits by itself."""
        passes = {name: getattr(self, name) for name in ("forward", "gradient", "slope")}
        return replace(self, **{name: replace(one, seconds=one.seconds / ranks) for name, one in passes.items()})


def try_passes(
    classifier: Classifier,
    space: ParameterSpace,
    data: LabelledSet,
    directions: int,
    batch_size: int | None = None,
    head: Head | None = None,
    progress: Progress | None = None,
) -> Trial:
    """Do each kind of work twice on the first images of `data`; the weights come back bit for bit.

    Args:
        classifier: the model.
        space: the weights that may move.
        data: the calibration images.
        directions: how many directions the fits have.
        batch_size: images per forward pass, if given.
        head: the head that is fitted again, if one is.
        progress: told of the kinds of work done.
    """
    with alone():
        trial = _try_passes(classifier, space, data, directions, batch_size, head, progress)
    return trial.shared_by(present().size)


def _try_passes(
    classifier: Classifier,
    space: ParameterSpace,
    data: LabelledSet,
    directions: int,
    batch_size: int | None,
    head: Head | None,
    progress: Progress | None,
) -> Trial:
    device = classifier.device
    told = progress or (lambda done, total: None)
    on_gpu = device.type == "cuda"
    size = min(len(data), (batch_size or BATCH_SIZE) if on_gpu else min(batch_size or IMAGES, IMAGES))
    most = largest_batch(data, size) if on_gpu else size
    shown = data.subset(torch.arange(min(len(data), most))).resident(device)
    some = shown.subset(torch.arange(size))
    told(0, 4)
    forward = _tried(lambda: compute_logits(classifier, some, size), size, device)
    told(1, 4)
    logits = compute_logits(classifier, shown, size).to(space.device)
    probe = Probe(classifier, space, shown, logits, size)
    gradient = _try_gradient(probe, device)
    told(2, 4)
    slope = _try_slope(probe, device) if on_gpu else forward
    told(3, 4)
    fit = _try_fit(logits, shown.labels, len(data.classes), directions)
    refit = 0.0 if head is None else _try_head(head, min(len(data) // 2, HEAD_IMAGES), space.device)
    told(4, 4)
    return Trial(forward, gradient, slope, fit, _try_vector(space), refit)


def _try_gradient(probe: Probe, device: torch.device) -> Pass:
    """The gradient of one batch of images."""
    work = probe.batch_gradient
    inputs, labels = next(probe.data.batches(probe.gradient_batch, device))
    weights = torch.ones(probe.gradient_batch, device=device)
    with (
        probe.classifier.evaluating(),
        probe.space.freezing_others(probe.classifier.module),
        torch.enable_grad(),
    ):
        return _tried(lambda: work(inputs, labels, weights), len(labels), device, whole=True)


def _try_slope(probe: Probe, device: torch.device) -> Pass:
    """The logits' derivatives along a direction, by forward mode."""
    space = probe.space
    direction = torch.full((space.dimension,), space.dimension**-0.5, dtype=space.dtype, device=space.device)
    return _tried(lambda: probe.slopes(direction, None), len(probe.data), device)


def _try_vector(space: ParameterSpace) -> float:
    """Seconds that one gradient takes when a step along several is made, in one product."""
    row = torch.ones(2, space.dimension, dtype=space.dtype, device=space.device)
    weights = row.new_ones(2)
    weights @ row
    return _seconds(lambda: weights @ row, space.device) / 2


def _try_fit(logits: Tensor, labels: Tensor, classes: int, directions: int) -> Pass:
    """The arithmetic of one evaluation of all fits: along coefficients and back."""
    some = torch.arange(max(FITTED, len(labels))) % len(labels)
    labels = labels[some].to(logits.device)
    logits = logits[some.to(logits.device)]
    outputs = leading_outputs(logits, labels)
    changes = torch.zeros(directions, *outputs.shape, device=logits.device)
    surrogate = Surrogate(logits, labels, classes, outputs, changes, torch.ones_like(logits[0]))
    start = logits.new_zeros(FOLDS * len(PRICES), surrogate.size)
    surrogate.groups  # noqa: B018 - made once, and kept
    return _tried(lambda: surrogate.pull_back(torch.softmax(surrogate.at(start), dim=2)), len(logits), logits.device)


def _try_head(head: Head, images: int, device: torch.device) -> float:
    """Seconds for each image of one evaluation of a head's fit, and of its temperature's."""
    images = max(1, images)
    outputs, width = head.module.weight.shape
    start = torch.zeros(images, outputs, device=device)
    labels = torch.arange(images, device=device) % outputs
    objective = head_objective(torch.ones(images, width, device=device), labels, start, PULL, outputs)
    none = np.zeros(outputs * (width + 1))

    def both() -> None:
        objective(none)
        cross_entropy(start.double() * 1.0, labels)

    both()
    return _seconds(both, device) / images


def _tried(work: Callable[[], Tensor], images: int, device: torch.device, whole: bool = False) -> Pass:
    """Seconds of the second time, and the bytes of the first.

    On a CPU these are the tensors' own, and what the system sees beyond them. With `whole` both are
    one figure, for a batch that an operation takes as it is.
    """
    give_back()
    watch = Watch(device)
    if device.type == "cuda":
        work()
        seconds = _seconds(work, device)
        return Pass(images, seconds / images, watch.peak())
    with _Tally() as tally:
        result = work()
    seen = max(0, watch.peak() - tally.most)
    held = tally.most + whole * seen
    return Pass(images, _seconds(work, device) / images, max(0, held - result.nbytes), 0 if whole else seen)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


class _Tally(TorchDispatchMode):
    """Counts the bytes of tensors that are made and not freed yet.

    The system's figure for a process does not tell: what was freed before is used again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._held = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor):
                self._known.add(tensor.untyped_storage().data_ptr())
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        place = storage.data_ptr()
        if place in self._known:
            return
        size = storage.nbytes()
        self._known.add(place)
        self._held += size
        self.most = max(self.most, self._held)

        def forget() -> None:
            self._held -= size
            self._known.discard(place)

        weakref.finalize(storage, forget)
