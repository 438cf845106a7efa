"""The loop's state between two iterations, and its form in a file."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hessian_surgery.errors import InputError
from hessian_surgery.model.parameters import Snapshot
from hessian_surgery.operation.problem import Problem
from hessian_surgery.operation.state_file import Packed, find_weights, name_weights, state_folder
from hessian_surgery.paper.amplitude import AdamControl, Controller, GammaControl
from hessian_surgery.paper.config import LoopConfig
from hessian_surgery.paper.deflation_phases import keep
from hessian_surgery.type_check import built
from hessian_surgery.types import Array
from hessian_surgery.weights.tensorfile import read_checked, read_metadata, save_checked

CONTROLLERS: dict[str, type[AdamControl] | type[GammaControl]] = {"adam": AdamControl, "gamma": GammaControl}


@dataclass(frozen=True)
class LoopState:
    """Where the loop stands between two iterations; the present weights are in the module.

    Attributes:
        iteration: iterations finished.
        accuracy: class accuracies (C,) of the present weights.
        controller: amplitude control; None until a phase's first spectrum has set the amplitude.
        best_accuracy: class accuracies (C,) of the best weights so far.
        best_weights: these weights.
        idle: iterations in a row that found nothing better.
        first_eigenvalue: λ_max of the first phase, which sets later phases' amplitudes (eq. 10).
        deflated: orthonormal vectors (k, p) of the phases before this one; None in the first.
    """

    iteration: int
    accuracy: Array
    controller: Controller | None
    best_accuracy: Array
    best_weights: Snapshot
    idle: int = 0
    first_eigenvalue: float | None = None
    deflated: Tensor | None = None


def pack(folder: Path, problem: Problem[LoopConfig], state: LoopState, identity: str) -> Packed:
    """The state as tensors and plain values; deflated vectors go to a file of their own."""
    same = all(torch.equal(p, b) for p, b in zip(problem.space.parameters, state.best_weights, strict=True))
    tensors = {
        "accuracy": torch.from_numpy(state.accuracy),
        "best_accuracy": torch.from_numpy(state.best_accuracy),
    }
    if not same:
        tensors |= name_weights("best", state.best_weights)
    if state.deflated is not None:
        _save_deflated(folder, state.deflated, identity)
    controller = state.controller
    kind = next((name for name, cls in CONTROLLERS.items() if isinstance(controller, cls)), None)
    return tensors, {
        "iteration": state.iteration,
        "idle": state.idle,
        "control": kind,
        "controller": asdict(controller) if controller else {},
        "best_is_now": same,
        "first_eigenvalue": state.first_eigenvalue,
        "deflated": None if state.deflated is None else len(state.deflated),
    }


def unpack(
    folder: Path,
    problem: Problem[LoopConfig],
    tensors: dict[str, Tensor],
    plain: dict[str, Any],
    identity: str,
) -> LoopState:
    """The inverse of `pack`, with the present weights in the module."""
    control = plain["control"]  # None between two phases
    kind: Any = CONTROLLERS[control] if control else None
    controller = built(kind, plain["controller"], "controller") if control else None
    best = problem.space.snapshot() if plain["best_is_now"] else find_weights("best", tensors)
    return LoopState(
        iteration=plain["iteration"],
        accuracy=tensors["accuracy"].numpy(),
        controller=controller,
        best_accuracy=tensors["best_accuracy"].numpy(),
        best_weights=best,
        idle=plain["idle"],
        first_eigenvalue=plain["first_eigenvalue"],
        deflated=_load_deflated(folder, problem, plain["deflated"], identity),
    )


def _save_deflated(folder: Path, vectors: Tensor, identity: str) -> None:
    """Write the deflated vectors, once a phase: they are large and do not change within it."""
    path = _deflated_path(folder, len(vectors))
    known = read_metadata(path) if path.exists() else {}
    if known.get("identity") != identity:
        save_checked(path, {"vectors": vectors.cpu()}, {"identity": identity})


def _load_deflated(folder: Path, problem: Problem[LoopConfig], count: int | None, identity: str) -> Tensor | None:
    if count is None:
        return None
    tensors, metadata = read_checked(_deflated_path(folder, count))
    if metadata.get("identity") != identity:
        raise InputError(f"resume: {_deflated_path(folder, count)} belongs to another run")
    assert problem.finder is not None
    return keep(tensors["vectors"], problem.space, problem.finder.storage)


def _deflated_path(folder: Path, count: int) -> Path:
    return state_folder(folder) / f"state-deflated-{count}.safetensors"
