"""What a spectrum would take in memory, before it starts; where the basis goes; what would fit if it does not."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from hessian_surgery.curvature.basis import Place, Precision, Storage
from hessian_surgery.data import batches
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.errors import InputError
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.losses import cross_entropy
from hessian_surgery.model.parameters import ParameterSpace, parameter_space

BasisPlace: TypeAlias = Literal["auto", "device", "host", "disk"]
BasisPrecision: TypeAlias = Literal["auto", "full", "bfloat16"]

# Vectors of length p that Lanczos and a product hold beside the basis.
WORK_VECTORS = 6
# Bytes that a gradient kept with its graph holds, per byte that a forward pass saves for its backward pass: as much
# again for the gradient's own intermediate values, and some of both for the product's.
GRAPH_FACTOR = 3
# Of what is free, how much may be planned for.
SHARE = 0.9
# Rounding to bfloat16 leaves residuals of some 0.003; below this tolerance it is not chosen.
HALF_TOLERANCE = 0.005


def full_rows(spikes: int) -> int:
    """Room for a run that seldom restarts."""
    return 2 * spikes + 20


def few_rows(spikes: int) -> int:
    """Room for a run that restarts often: a quarter more vectors than pairs."""
    return spikes + max(spikes // 4, 12)


@dataclass(frozen=True)
class Room:
    """Bytes that are free: on the weights' device, in host memory, and in the folder for temporary files."""

    device: int
    host: int
    disk: int


def free_room(device: torch.device) -> Room:
    """What is free now; device and host are the same memory where the weights are on the CPU."""
    host = _free_host()
    on_device = host
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        on_device = torch.cuda.mem_get_info(device)[0] + held
    return Room(on_device, host, shutil.disk_usage(tempfile.gettempdir()).free)


def choose_storage(
    space: ParameterSpace,
    spikes: int,
    *,
    steps: int | None = None,
    tolerance: float = 0.01,
    place: BasisPlace = "auto",
    precision: BasisPrecision = "auto",
    rows: int | None = None,
    limit: int | None = None,
    beside: int = 0,
    room: Room | None = None,
) -> Storage:
    """The first that fits of: on the device, restarted often there, in half precision, in host memory, on disk.

    Args:
        space: the weights.
        spikes: K.
        steps: the exact number of Lanczos steps, where it is fixed: all are stored and there is no restart.
        tolerance: wanted relative residual; a tight one rules out half precision.
        place: where the basis must be, or "auto".
        precision: how its vectors must be kept, or "auto".
        rows: how many vectors there must be room for; by default as the memory allows.
        limit: bytes that the basis may take, wherever it is.
        beside: vectors that are kept in the same way beside the basis and the k that come out of it.
        room: what is free; by default measured now.

    Raises:
        InputError: none fits.
    """
    for name, value, kind in (("basis", place, BasisPlace), ("precision", precision, BasisPrecision)):
        if value not in get_args(kind):
            *most, last = get_args(kind)
            raise InputError(f"{name}: got {value!r}; give {', '.join(most)} or {last}")
    room = room or free_room(space.device)
    candidates = [
        storage
        for storage in _candidates(spikes, steps, rows, space.dimension)
        if place in ("auto", storage.place)
        and (precision == storage.precision or (precision == "auto" and _half_allowed(storage, tolerance)))
    ]
    fitting = (
        storage
        for storage in candidates
        if fits(storage, space, room, beside + spikes) and (limit is None or basis_bytes(storage, space) <= limit)
    )
    chosen = next(fitting, None)
    if chosen is None:
        every = _candidates(spikes, steps, rows, space.dimension)
        would = (s for s in every if _half_allowed(s, tolerance) and fits(s, space, room, beside + spikes))
        raise InputError(_refusal(space, spikes, candidates, place, limit, room, next(would, None)))
    return chosen


def plan_room(
    classifier: Classifier,
    space: ParameterSpace,
    data: LabelledSet,
    images: int,
    spikes: int,
    steps: int | None,
    tolerance: float,
    place: BasisPlace,
    precision: BasisPrecision,
    basis_memory: float | None = None,
    beside: int = 0,
    taken: int = 0,
) -> Storage:
    """`choose_storage` in the room that the graph of so many images, and `taken` bytes more, leave.

    `basis_memory` limits the basis, in GB.

    Raises:
        InputError: graph or basis does not fit; the message says what would.
    """
    room = free_room(space.device)
    taken += check_graph(classifier, data, images, room, space)
    on_host = taken if space.device.type == "cpu" else 0
    left = replace(room, device=room.device - taken, host=room.host - on_host)
    return choose_storage(
        space,
        spikes,
        steps=steps,
        tolerance=tolerance,
        place=place,
        precision=precision,
        limit=None if basis_memory is None else int(1e9 * basis_memory),
        beside=beside,
        room=left,
    )


def basis_bytes(storage: Storage, space: ParameterSpace) -> int:
    """Bytes of the rows of a basis."""
    size = torch.bfloat16.itemsize if storage.precision == "bfloat16" else space.dtype.itemsize
    return storage.rows * space.dimension * size


def fits(storage: Storage, space: ParameterSpace, room: Room, beside: int = 0) -> bool:
    """Whether a basis, so many rows kept beside it in the same way, and the vectors at work have room."""
    work = WORK_VECTORS * space.dimension * space.dtype.itemsize
    rows = basis_bytes(replace(storage, rows=storage.rows + beside), space)
    if storage.place == "device":
        return rows + work <= SHARE * room.device
    return work <= SHARE * room.device and rows <= SHARE * (room.host if storage.place == "host" else room.disk)


def describe_storage(storage: Storage, space: ParameterSpace) -> str:
    """One line on what was chosen."""
    kind = "bfloat16" if storage.precision == "bfloat16" else str(space.dtype).removeprefix("torch.")
    where = {"device": f"on {space.device}", "host": "in host memory", "disk": f"on disk in {tempfile.gettempdir()}"}
    return (
        f"basis: {storage.rows} vectors of {space.dimension:,} weights in {kind}, "
        f"{sized(basis_bytes(storage, space))} {where[storage.place]}"
    )


def check_graph(
    classifier: Classifier,
    data: LabelledSet,
    images: int,
    room: Room | None = None,
    space: ParameterSpace | None = None,
) -> int:
    """The bytes that the kept graph of so many images takes, if they fit.

    Raises:
        InputError: they do not; it says which micro-batch would.
    """
    room = room or free_room(classifier.device)
    each = GRAPH_FACTOR * saved_bytes(classifier, data, space)
    if images * each > SHARE * room.device:
        fitting = int(SHARE * room.device // max(1, each))
        advice = f"give --micro-batch {fitting}" if fitting else "not even one image fits; choose fewer --parameters"
        raise InputError(
            f"hessian_samples: the graph of {images} images takes about {sized(images * each)}, "
            f"and {sized(room.device)} is free; {advice}"
        )
    return images * each


def saved_bytes(classifier: Classifier, data: LabelledSet, space: ParameterSpace | None = None) -> int:
    """Bytes that autograd saves for one image's gradient in the space's weights, the weights themselves excluded.

    By default the space of all trainable weights.
    """
    space = space or parameter_space(classifier.module)
    weights = {parameter.untyped_storage().data_ptr() for parameter in classifier.module.parameters()}
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # a saved output that held its own node would never be freed

    inputs, labels = next(data.subset(torch.zeros(1, dtype=torch.int64)).batches(1, classifier.device))
    with (
        classifier.evaluating(),
        torch.enable_grad(),
        sdpa_kernel(SDPBackend.MATH),
        space.freezing_others(classifier.module),
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
    ):
        cross_entropy(classifier.logits(inputs), labels)
    return sum(saved.values())


def input_bytes(data: LabelledSet) -> int:
    """Bytes of one sample's inputs."""
    return sum(tensor.nbytes for tensor in batches.tensors(data.fetch(torch.zeros(1, dtype=torch.int64))))


class Watch:
    """The most memory that this process has held since the watch was made, less what it held then.

    What is held only while `excluded` is active, such as a product's own activations, does not count.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._most = 0
        self._reset()
        self._host, self._cuda = _status("VmRSS"), self._allocated()

    def peak(self) -> int:
        """Bytes: in host memory, and on the device where it is not the same."""
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
            Path("/proc/self/clear_refs").write_text("5")  # the peak of the resident memory counts anew
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated(self._device) if self._device.type == "cuda" else 0


def _candidates(spikes: int, steps: int | None, rows: int | None, dimension: int) -> list[Storage]:
    wanted = [rows] if rows else [steps] if steps else [full_rows(spikes), few_rows(spikes)]
    counts = sorted({min(count, dimension) for count in wanted}, reverse=True)
    places: tuple[Place, ...] = ("device", "host", "disk")
    precisions: tuple[Precision, ...] = ("full", "bfloat16")
    return [Storage(count, place, precision) for place in places for precision in precisions for count in counts]


def _half_allowed(storage: Storage, tolerance: float) -> bool:
    return storage.precision == "full" or tolerance >= HALF_TOLERANCE


def _refusal(
    space: ParameterSpace,
    spikes: int,
    tried: list[Storage],
    place: BasisPlace,
    limit: int | None,
    room: Room,
    would: Storage | None,
) -> str:
    least = min((basis_bytes(storage, space) for storage in tried), default=0)
    if limit is not None and least > limit:
        return (
            f"basis_memory: got {sized(limit)}, and {spikes} spikes need {sized(least)}; allow more, or ask for fewer"
        )
    free = {"device": room.device, "host": room.host, "disk": room.disk}
    have = ", ".join(f"{sized(max(0, count))} on {name}" for name, count in free.items() if place in ("auto", name))
    if would is not None:
        advice = f"--basis {would.place} would fit" + (" with --precision bfloat16" * (would.precision != "full"))
    else:
        advice = f"set TMPDIR to a disk with {sized(least)} free, or ask for fewer spikes, or --parameters 'layer4.*'"
    return f"basis: {spikes} spikes need {sized(least)} or more, and there is {have}; {advice}"


def _free_host() -> int:
    """Bytes of host memory that can be had, within the limits of this process's control group."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    except (OSError, StopIteration):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    with suppress(OSError, ValueError, KeyError):
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        free = min(free, limit - int(stat["anon"]))  # what is not anonymous is mostly cache, which gives way
    return free


def _status(field: str) -> int:
    """A field of /proc/self/status in bytes; 0 where there is none."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return 1024 * int(line.split()[1])
    return 0


def sized(count: float) -> str:
    """Bytes as a person reads them."""
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
