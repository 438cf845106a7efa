"""Memory by stage: what an operation would hold where, by arithmetic, and whether it fits."""

from dataclasses import dataclass, replace

import torch

from hessian_surgery.curvature.basis import Place
from hessian_surgery.curvature.memory import SHARE, Room, sized
from hessian_surgery.directions.rows import place_rows
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.resampled_pairs import RESAMPLES as REPORT_RESAMPLES
from hessian_surgery.operation.choice import RESAMPLES
from hessian_surgery.operation.coefficient_fit import PRICES
from hessian_surgery.operation.crossfit import FOLDS
from hessian_surgery.operation.size_up import FLOAT, Sizes
from hessian_surgery.ranks import present

LONG = 8
# On a CPU the C library keeps free blocks between those in use: this share; and this share more of
# activations, which come in many sizes (benchmarks.announced).
SPARE = 0.16
GAPS = 0.3
# Bytes that scipy's search holds for each weight of a head: 37 numbers in double precision.
SEARCH = 37 * 8

# What helps if a part is too large.
ADVICE = {
    "libraries": "give it a machine with more",
    "images": "calibration_cap=N takes fewer images of each class",
    "copies of weights": "parameters='layer4.*' moves fewer weights",
    "gradients": "parameters='layer4.*' moves fewer weights",
    "spikes": "parameters='layer4.*' moves fewer weights",
    "head": "directions='class-gradients' fits no head again",
    "activations": "batch_size=N takes fewer images at a time",
    "logits": "calibration_cap=N takes fewer images of each class",
    "fits": "calibration_cap=N takes fewer images of each class",
    "candidates": "calibration_cap=N takes fewer images of each class",
}


@dataclass(frozen=True)
class Part:
    """Something that is held in a stage: what, how many bytes, and where."""

    what: str
    nbytes: int
    place: Place


@dataclass(frozen=True)
class StageMemory:
    """What a stage holds at its peak."""

    name: str
    parts: tuple[Part, ...]

    def held(self, *places: Place) -> int:
        """The bytes in these places."""
        return sum(part.nbytes for part in self.parts if part.place in places)


def memory_by_stage(sizes: Sizes, room: Room) -> tuple[StageMemory, ...]:
    """What each stage holds, besides the model and what is in memory already."""
    data = [
        Part("libraries", sizes.libraries, "host"),
        Part("images", (sizes.images + sizes.heldout) * sizes.image, "device"),
        Part("images", sizes.drawn * sizes.image, "host"),
    ]
    # The starting weights, to restore them; and the whole model, for the patch.
    copies = [Part("copies of weights", sizes.vector, "device"), Part("copies of weights", sizes.state, "host")]
    kept = [*data, *copies]
    found = [_prepare(sizes)]
    if sizes.basis:
        work = [Part("activations", sizes.graph, "device"), Part("copies of weights", 3 * sizes.vector, "device")]
        kept.append(Part("spikes", sizes.basis, sizes.basis_place))
        found.append(StageMemory("spikes", (*kept, *work)))
    if sizes.with_plan:
        rows = _rows(sizes, _left(room, kept))
        kept += [*rows, Part("logits", sizes.all_logits + 2 * sizes.modelled, "device")]
        found.append(StageMemory("directions", (*kept, *_directions_work(sizes))))
        found += _plan(sizes, kept)
    else:
        work = _passing(max(sizes.gradient, sizes.forward), 2 * sizes.vector)
        found.append(StageMemory("sensitivity", (*kept, *work)))
        found.append(StageMemory("measure", (*kept, *_passing(sizes.forward, 3 * sizes.vector))))
    report = [Part("copies of weights", sizes.state, "host"), Part("activations", sizes.forward, "device")]
    drawn = Part("candidates", 2 * LONG * REPORT_RESAMPLES * sizes.classes, "host")
    found.append(StageMemory("report", (*data, *copies, *report, drawn)))
    return tuple(found)


def _prepare(sizes: Sizes) -> StageMemory:
    """Images are held twice while they are put together; then the model answers them."""
    libraries = Part("libraries", sizes.libraries, "host")
    own = Part("images", sizes.images * sizes.image, "device")
    again = Part("images", max(sizes.images, sizes.heldout) * sizes.image, "device")
    if again.nbytes > sizes.tried:
        return StageMemory("prepare", (libraries, own, again, Part("images", sizes.drawn * sizes.image, "host")))
    return StageMemory("prepare", (libraries, own, Part("activations", sizes.tried, "device")))


def _rows(sizes: Sizes, left: Room) -> list[Part]:
    """Gradients and logit changes, each family where there is room when it is made."""
    found = []
    for count in sizes.gradients:
        rows = count * sizes.vector // present().size
        found.append(Part("gradients", rows, place_rows(rows, left)))
        found.append(Part("copies of weights", sizes.vector, "device"))  # the preconditioner
        left = _left(left, found[-2:])
    # They are joined: once by family, once all together.
    changes = sizes.directions * sizes.modelled
    place = place_rows(changes, left)
    found.append(Part("logits", 2 * changes, place))
    if sizes.refit:
        # A change of the head from each half; all logits part of the way there, beside the changes.
        found.append(Part("head", 2 * FLOAT * sizes.head, "device"))
        found.append(Part("logits", sizes.all_logits, "device" if place == "device" else "host"))
    return found


def _directions_work(sizes: Sizes) -> list[Part]:
    # A sum and the squares beside a batch's gradient; a direction, and its logits three times.
    logits = Part("logits", 3 * sizes.all_logits, "device")
    # On a CPU the C library keeps what a gradient has freed, and forward passes need other sizes.
    passes = sizes.gradient + sizes.freed
    gradient = _passing(passes, 2 * sizes.vector) if sizes.gradients else []
    slope = [*_passing(sizes.slope, sizes.vector), logits]
    return max(gradient, slope, *_refit_work(sizes), key=_total)


def _refit_work(sizes: Sizes) -> list[list[Part]]:
    """What is held while a temperature is fitted to a half of the images, and then a head."""
    # All features and those of the half. Its logits, and three times in double precision.
    temperature = [Part("logits", 3 * sizes.features // 2 + 7 * sizes.all_logits // 2, "device")]
    # The half's features again in other units; where its logits start, where they are, the slopes.
    fit = Part("logits", 2 * sizes.features + 5 * sizes.all_logits // 2, "device")
    # The head's changes and slopes.
    own = Part("head", 7 * FLOAT * sizes.head, "device")
    return [temperature, [fit, own, Part("head", SEARCH * sizes.head, "host")]] if sizes.refit else []


def _passing(activations: int, vectors: int) -> list[Part]:
    """A pass over a batch, with vectors of weights beside it."""
    return [Part("activations", activations, "device"), Part("copies of weights", vectors, "device")]


def _total(parts: list[Part]) -> int:
    return sum(part.nbytes for part in parts)


def _plan(sizes: Sizes, kept: list[Part]) -> list[StageMemory]:
    """Fits, forward passes, and the choice among candidates; then again for the other aim."""
    # Values, one copy filled up and one gathered by class; weights of images.
    fits = FOLDS * len(PRICES) * (3 * sizes.modelled + 2 * FLOAT * sizes.images)
    rays = 2 * sizes.plans * len(PRICES) * sizes.modelled
    # A linear model at each start.
    kept = [*kept, Part("fits", rays + (4 + sizes.refit) * sizes.modelled, "device")]
    answers = sizes.steps * sizes.images * LONG
    drawn = RESAMPLES * sizes.steps * sizes.classes * FLOAT
    # How often images are drawn, in double and in single precision; which are right.
    resampled = RESAMPLES * sizes.images * (LONG + FLOAT) + sizes.steps * sizes.images
    found = []
    for number, name in enumerate(("plan", "front")):
        work = [
            [Part("fits", fits, "device")],
            _passing(sizes.forward, 2 * sizes.vector),
            [Part("candidates", answers + drawn + resampled, "host")],
        ]
        # The first aim's candidates are kept while those of the second are made.
        known = Part("candidates", number * (answers + drawn), "host")
        found.append(StageMemory(name, (*kept, known, *max(work, key=_total))))
    known = Part("candidates", 2 * (answers + drawn), "host")
    return [*found, StageMemory("measure", (*kept, known, *_passing(sizes.forward, 3 * sizes.vector)))]


def _left(room: Room, parts: list[Part]) -> Room:
    """The room that parts leave."""
    taken = {place: sum(part.nbytes for part in parts if part.place == place) for place in ("device", "host", "disk")}
    if room.device == room.host:
        both = room.host - taken["device"] - taken["host"]
        return Room(both, both, room.disk - taken["disk"])
    return Room(room.device - taken["device"], room.host - taken["host"], room.disk - taken["disk"])


def on_one_memory(stage: StageMemory, device: torch.device) -> StageMemory:
    """The stage as it is on a CPU, where device and host are one memory."""
    if device.type == "cuda":
        return stage
    parts = [replace(part, place="host") if part.place == "device" else part for part in stage.parts]
    held = sum(part.nbytes for part in parts if part.place == "host")
    activations = sum(part.nbytes for part in parts if part.what == "activations")
    return replace(stage, parts=(*parts, Part("libraries", int(SPARE * held + GAPS * activations), "host")))


def spilled(stages: tuple[StageMemory, ...], device: torch.device) -> tuple[str, ...]:
    """What would not be kept on the model's device, though it would be if there were room."""
    where = {"host": "host memory", "disk": "temporary files"}
    found = {}
    for stage in stages:
        for what in ("gradients", "logits", "spikes"):
            for place, name in where.items():
                size = sum(part.nbytes for part in stage.parts if part.what == what and part.place == place)
                if size and (place == "disk" or device.type == "cuda"):
                    found[what, place] = f"{what}: {sized(size)} in {name}"
    return tuple(found.values())


def check_room(stages: tuple[StageMemory, ...], room: Room, device: torch.device) -> None:
    """Refuse an operation that cannot fit.

    Raises:
        InputError: a stage does not fit; the message names its largest part and what helps.
    """
    free = {"device": room.device, "host": room.host, "disk": room.disk}
    for stage in (on_one_memory(stage, device) for stage in stages):
        for place, count in free.items():
            mine = [part for part in stage.parts if part.place == place]
            need = sum(part.nbytes for part in mine)
            if need <= SHARE * count:
                continue
            most = max({part.what for part in mine}, key=lambda what: _total([p for p in mine if p.what == what]))
            where = {"device": f"on {device}", "host": "in memory", "disk": "on disk"}[place]
            advice = ADVICE[most] if place != "disk" else f"set TMPDIR to a larger disk, or {ADVICE[most]}"
            raise InputError(
                f"memory: the stage {stage.name!r} needs about {sized(need)} {where}, mostly for {most}, and "
                f"{sized(max(0, count))} is free; {advice}"
            )
