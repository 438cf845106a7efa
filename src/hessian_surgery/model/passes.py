"""How forward passes are made: images per batch and memory format, by a short trial on a CPU.

On a CPU a small batch stays in the cache, and the memory of its layers is used again. That of a
large one goes back to the system after each layer, and comes again page by page.
"""

import math
import time
from dataclasses import dataclass, replace

import torch

from hessian_surgery.data import batches
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.distributed import agreed
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import BATCH_SIZE, batch_logits
from hessian_surgery.model.freed_memory import give_back

# What is tried instead of `BATCH_SIZE`. None is below the `MICRO` of class gradients, which a
# smaller batch would cut.
SIZES = (64, 128, 256)
# With fewer images, or if a pass over all takes fewer seconds, nothing is tried.
FEWEST = 1000
SHORTEST = 0.5
# How often each way is timed, at most; its best time counts.
ROUNDS = 3
# After the first round, ways that took longer than the best by this factor are left out.
HOPELESS = 1.5
# What is not faster than the default by this factor is noise.
FASTER = 1.05


@dataclass(frozen=True)
class Passes:
    """How forward passes are made.

    Attributes:
        batch_size: images per pass.
        channels_last: that of `Classifier`.
    """

    batch_size: int = BATCH_SIZE
    channels_last: bool | None = None

    def through(self, classifier: Classifier) -> Classifier:
        """The classifier that takes its inputs in this format."""
        return replace(classifier, channels_last=self.channels_last)


def choose_passes(classifier: Classifier, data: LabelledSet, batch_size: int | None = None) -> Passes:
    """Choose how passes over `data` are made; the first rank chooses for all.

    On a CPU, if there are enough images, passes over the first ones are timed. The trial ends when
    it has taken as long as one pass over all: an operation takes some 35 of these.

    Args:
        classifier: the model. If it says what format it takes, only the size is chosen.
        data: the images, in memory.
        batch_size: images per pass; None leaves them to the trial. If given, nothing is tried.
    """
    return agreed(_fastest(classifier, data, batch_size))


def _fastest(classifier: Classifier, data: LabelledSet, batch_size: int | None) -> Passes:
    default = Passes(batch_size or BATCH_SIZE, classifier.channels_last)
    if batch_size is not None or classifier.device.type != "cpu" or len(data) < FEWEST:
        return default
    started = time.perf_counter()
    with classifier.evaluating(), torch.no_grad():
        _seconds(default.through(classifier), data, SIZES[0])  # the first pass ever is slow
        seconds = {default: _seconds(classifier, data, BATCH_SIZE)}
        allowed = len(data) * seconds[default]
        if allowed < SHORTEST:
            return default
        contenders = [way for way in _ways(classifier, data) if way != default]
        for _ in range(ROUNDS):
            for way in contenders:
                if time.perf_counter() < started + allowed:
                    give_back()  # or what each way leaves free would add up
                    found = _seconds(way.through(classifier), data, way.batch_size)
                    seconds[way] = min(found, seconds.get(way, math.inf))
            best = min(seconds.values())
            contenders = [way for way, taken in seconds.items() if taken < HOPELESS * best]
    give_back()
    fastest = min(seconds, key=seconds.__getitem__)
    return fastest if seconds[default] > FASTER * seconds[fastest] else default


def for_one_pass(classifier: Classifier, batch_size: int | None = None) -> Passes:
    """How a single pass is made, for which a trial would cost more than it saves."""
    small = SIZES[0] if classifier.device.type == "cpu" else BATCH_SIZE
    return Passes(batch_size or small, classifier.channels_last)


def _ways(classifier: Classifier, data: LabelledSet) -> list[Passes]:
    """All ways to try, those first that are often fast: time may run out."""
    formats = [classifier.channels_last]
    images = any(tensor.ndim == 4 for tensor in batches.tensors(data.fetch(torch.zeros(1, dtype=torch.int64))))
    if classifier.channels_last is None and images:
        formats = [True, None]
    return [Passes(size, form) for size in (*SIZES, BATCH_SIZE) for form in formats]


def _seconds(classifier: Classifier, data: LabelledSet, size: int) -> float:
    """Seconds per image in the fastest of some batches; infinite if the model refuses the format.

    A model that rearranges its inputs with `view` may take one format only.
    """
    least = math.inf
    # Small batches more often, so that each way is tried on as many images.
    for _ in range(max(1, SIZES[1] // size)):
        started = time.perf_counter()
        inputs, _ = next(data.batches(size, classifier.device))
        try:
            batch_logits(classifier, inputs)
        except RuntimeError:
            if not classifier.channels_last:
                raise
            return math.inf
        least = min(least, (time.perf_counter() - started) / min(size, len(data)))
    return least
