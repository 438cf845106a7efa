"""Memory: how much is free, what the graph of a batch takes, and what a run has held."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from hessian_surgery.data import batches
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.distributed import least
from hessian_surgery.errors import InputError
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.losses import cross_entropy
from hessian_surgery.model.parameters import ParameterSpace, parameter_space
from hessian_surgery.ranks import present

# Bytes that a gradient kept with its graph holds, per byte that a forward pass saves for its
# backward pass: as much again for the gradient's own intermediate values, and some of both for the
# product's.
GRAPH_FACTOR = 3
# The share of the free memory that may be planned for.
SHARE = 0.9
# So many texts show what one takes in a batch that is padded to the longest.
TYPICAL = 32


@dataclass(frozen=True)
class Room:
    """Bytes that are free: on the weights' device, in host memory, and for temporary files."""

    device: int
    host: int
    disk: int


def free_room(device: torch.device) -> Room:
    """The bytes that are free now; for weights on the CPU, device and host are the same memory.

    Ranks on one machine share what is free there, and all plan with the least that any of them has.
    """
    nearby = present().nearby
    host = _free_host() // nearby
    on_device = host
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        on_device = torch.cuda.mem_get_info(device)[0] // -(-nearby // torch.cuda.device_count()) + held
    return Room(*least([on_device, host, shutil.disk_usage(tempfile.gettempdir()).free // nearby]))


def check_graph(
    classifier: Classifier,
    data: LabelledSet,
    images: int,
    room: Room | None = None,
    space: ParameterSpace | None = None,
) -> int:
    """The bytes that the kept graph of a batch of `images` takes.

    Raises:
        InputError: they do not fit; the message says which micro-batch would.
    """
    room = room or free_room(classifier.device)
    each = GRAPH_FACTOR * saved_bytes(classifier, data, space)
    if images * each > SHARE * room.device:
        fitting = int(SHARE * room.device // max(1, each))
        advice = f"give micro_batch={fitting}" if fitting else "not even one image fits; choose fewer parameters"
        raise InputError(
            f"hessian_samples: the graph of {images} images takes about {sized(images * each)}, "
            f"and {sized(room.device)} is free; {advice}"
        )
    return images * each


def saved_bytes(classifier: Classifier, data: LabelledSet, space: ParameterSpace | None = None) -> int:
    """Bytes that autograd saves for the gradient of one image, without the weights themselves.

    Of samples that differ in length, the mean over a padded batch.

    The gradient is in the weights of `space`, by default in all trainable ones.
    """
    space = space or parameter_space(classifier.module)
    weights = {parameter.untyped_storage().data_ptr() for parameter in classifier.module.parameters()}
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # a saved output that held its own node would never be freed

    some = torch.arange(_typical(data))
    inputs, labels = next(data.subset(some).batches(len(some), classifier.device))
    with (
        classifier.evaluating(),
        torch.enable_grad(),
        sdpa_kernel(SDPBackend.MATH),
        space.freezing_others(classifier.module),
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
    ):
        cross_entropy(classifier.as_inputs_come().logits(inputs), labels)
    return sum(saved.values()) // len(some)


def input_bytes(data: LabelledSet) -> int:
    """Bytes of the inputs of one sample."""
    count = _typical(data)
    return sum(tensor.nbytes for tensor in batches.tensors(data.fetch(torch.arange(count)))) // count


def _typical(data: LabelledSet) -> int:
    """How many samples show what one takes: the first alone, unless they differ in length."""
    return 1 if data.ragged is None else min(len(data), TYPICAL)


class Watch:
    """The most memory that this process has held since the watch was made, minus what it held then.

    What is held only in `excluded` blocks, such as a product's own activations, does not count.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._most = 0
        self._reset()
        self._host = _status("VmRSS")
        self._cuda = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0

    def peak(self) -> int:
        """The bytes held in host memory, and on the device if that is another memory."""
        host = max(0, _status("VmHWM") - self._host)
        device = torch.cuda.max_memory_allocated(self._device) - self._cuda if self._device.type == "cuda" else 0
        self._most = max(self._most, host + device)
        return self._most

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """A block whose passing needs do not count."""
        self.peak()
        yield
        self._reset()

    def _reset(self) -> None:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the resident peak starts again
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)


def sized(count: float) -> str:
    """Bytes in MB or GB, for people."""
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _free_host() -> int:
    """Bytes of host memory that are free within the limits of this process's control group."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    except (OSError, StopIteration):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    with suppress(OSError, ValueError, KeyError):
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        free = min(free, limit - int(stat["anon"]))  # the rest is mostly cache, which gives way
    return free


def _status(field: str) -> int:
    """A field of /proc/self/status in bytes; 0 if there is none."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return 1024 * int(line.split()[1])
    return 0
