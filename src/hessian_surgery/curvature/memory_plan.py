"""Where the Lanczos basis goes, chosen before a run starts, and what would fit if it does not."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

import torch

from hessian_surgery.curvature.basis import Place, Precision, Storage
from hessian_surgery.curvature.memory import SHARE, Room, check_graph, free_room, sized
from hessian_surgery.curvature.operators import VectorSpace
from hessian_surgery.curvature.slices import width
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.errors import InputError
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.parameters import ParameterSpace
from hessian_surgery.ranks import present

BasisPlace: TypeAlias = Literal["auto", "device", "host", "disk"]
BasisPrecision: TypeAlias = Literal["auto", "full", "bfloat16"]

# Vectors of length p that Lanczos and a product hold beside the basis.
WORK_VECTORS = 6
# Rounding to bfloat16 leaves residuals of about 0.003; below this tolerance it is not chosen.
HALF_TOLERANCE = 0.005


def full_rows(spikes: int) -> int:
    """How many vectors a run keeps that seldom restarts."""
    return 2 * spikes + 20


def few_rows(spikes: int) -> int:
    """How many vectors a run keeps that restarts often: a quarter more than there are spikes."""
    return spikes + max(spikes // 4, 12)


def choose_storage(
    space: VectorSpace,
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
    """The first storage that fits.

    The device comes first, then host memory, then disk. In each place full precision comes before
    half, and with each precision many rows before few.

    Args:
        space: the weights, or any vectors.
        spikes: K.
        steps: the exact number of Lanczos steps, if fixed: all are stored, without a restart.
        tolerance: wanted relative residual; a tight one rules out half precision.
        place: where the basis must be, or "auto".
        precision: how its vectors must be stored, or "auto".
        rows: how many vectors there must be room for; by default what the memory allows.
        limit: bytes that the basis may take, in any place.
        beside: vectors stored in the same way, beside the basis and the K spikes.
        room: the free memory; by default measured now.

    Raises:
        InputError: none fits.
    """
    _check_choice("basis", place, get_args(BasisPlace))
    _check_choice("precision", precision, get_args(BasisPrecision))
    room = room or free_room(space.device)
    every = _candidates(spikes, steps, rows, space.dimension)
    fitting = [storage for storage in every if fits(storage, space, room, beside + spikes)]
    allowed = [storage for storage in every if _allowed(storage, place, precision, tolerance)]
    for storage in allowed:
        if storage in fitting and (limit is None or basis_bytes(storage, space) <= limit):
            return storage
    would = next((storage for storage in fitting if _allowed(storage, "auto", "auto", tolerance)), None)
    raise InputError(_refusal(space, spikes, allowed, place, limit, room, would))


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
    """`choose_storage` in the memory that the graph of a batch of `images` leaves.

    Args:
        classifier: the model.
        space: its weights that spikes are directions of.
        data: the training data.
        images: images of the batch that are resident at a time.
        spikes: K; see `choose_storage` for the next four.
        steps: the exact number of Lanczos steps, if fixed.
        tolerance: wanted relative residual.
        place: where the basis must be, or "auto".
        precision: how its vectors must be stored, or "auto".
        basis_memory: GB that the basis may take, in any place.
        beside: vectors stored in the same way, beside the basis and the K spikes.
        taken: bytes of the device that are spoken for already.

    Raises:
        InputError: the graph or the basis does not fit; the message says what would.
    """
    room = free_room(space.device)
    taken += check_graph(classifier, data, images, room, space)
    on_host = taken if space.device.type == "cpu" else 0
    return choose_storage(
        space,
        spikes,
        steps=steps,
        tolerance=tolerance,
        place=place,
        precision=precision,
        limit=None if basis_memory is None else int(1e9 * basis_memory),
        beside=beside,
        room=replace(room, device=room.device - taken, host=room.host - on_host),
    )


def basis_bytes(storage: Storage, space: VectorSpace) -> int:
    """The bytes that the rows of a basis take on each rank."""
    size = torch.bfloat16.itemsize if storage.precision == "bfloat16" else space.dtype.itemsize
    return storage.rows * width(space) * size


def fits(storage: Storage, space: VectorSpace, room: Room, beside: int = 0) -> bool:
    """Whether there is room for a basis, `beside` more rows stored like it, and vectors at work."""
    work = WORK_VECTORS * space.dimension * space.dtype.itemsize
    rows = basis_bytes(replace(storage, rows=storage.rows + beside), space)
    if storage.place == "device":
        return rows + work <= SHARE * room.device
    return work <= SHARE * room.device and rows <= SHARE * (room.host if storage.place == "host" else room.disk)


def describe_storage(storage: Storage, space: VectorSpace) -> str:
    """One line on where and how a basis is kept."""
    kind = "bfloat16" if storage.precision == "bfloat16" else str(space.dtype).removeprefix("torch.")
    where = {"device": f"on {space.device}", "host": "in host memory", "disk": f"on disk in {tempfile.gettempdir()}"}
    each = f", on each of {present().size} ranks" if present().joined else ""
    return (
        f"basis: {storage.rows} vectors of {space.dimension:,} weights in {kind}, "
        f"{sized(basis_bytes(storage, space))} {where[storage.place]}{each}"
    )


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InputError(f"{name}: got {value!r}; give {', '.join(choices[:-1])} or {choices[-1]}")


def _candidates(spikes: int, steps: int | None, rows: int | None, dimension: int) -> list[Storage]:
    wanted = [rows] if rows else [steps] if steps else [full_rows(spikes), few_rows(spikes)]
    counts = sorted({min(count, dimension) for count in wanted}, reverse=True)
    places: tuple[Place, ...] = ("device", "host", "disk")
    precisions: tuple[Precision, ...] = ("full", "bfloat16")
    return [Storage(count, place, precision) for place in places for precision in precisions for count in counts]


def _allowed(storage: Storage, place: BasisPlace, precision: BasisPrecision, tolerance: float) -> bool:
    """Whether a storage is what was asked for; "auto" takes half precision if it is good enough."""
    if place not in ("auto", storage.place):
        return False
    if precision == "auto":
        return storage.precision == "full" or tolerance >= HALF_TOLERANCE
    return storage.precision == precision


def _refusal(
    space: VectorSpace,
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
    if would is None:
        advice = f"set TMPDIR to a disk with {sized(least)} free, or ask for fewer spikes, or parameters='layer4.*'"
    elif would.precision == "full":
        advice = f"basis={would.place!r} would fit"
    else:
        advice = f"basis={would.place!r} would fit with precision={would.precision!r}"
    return f"basis: {spikes} spikes need {sized(least)} or more, and there is {have}; {advice}"
