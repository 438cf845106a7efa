"""The loop's state on disk, so that a run killed at any moment goes on where it was and ends bit for bit the same."""

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from hessian_surgery.curvature.basis import Storage
from hessian_surgery.data import batches
from hessian_surgery.errors import InputError
from hessian_surgery.model.parameters import Snapshot
from hessian_surgery.paper.amplitude import AdamControl, Controller, GammaControl
from hessian_surgery.paper.loop import Problem, State
from hessian_surgery.paper.phases import keep
from hessian_surgery.weights.tensorfile import read_header, read_tensors, save_tensors, weights_sha256

CONTROLLERS: dict[str, type[AdamControl] | type[GammaControl]] = {"adam": AdamControl, "gamma": GammaControl}


def fingerprint(problem: Problem) -> str:
    """A hash of all that a run depends on: choices, starting weights and buffers, images and labels."""
    digest = hashlib.sha256(json.dumps(problem.config.as_dict(), sort_keys=True).encode())
    digest.update(weights_sha256(problem.classifier.module.state_dict()).encode())
    config = problem.config
    parts = [problem.calibration_data, problem.gradient_data, problem.training_data if config.uses_spikes else None]
    for data in (part for part in parts if part is not None):
        digest.update(repr(data.classes).encode())
        tensors = {"index": data.index, "labels": data.labels}
        if not (data is problem.training_data and config.redraw_hessian):  # else it is not held, but read anew
            tensors |= {str(i): tensor for i, tensor in enumerate(batches.tensors(data.inputs()))}
        digest.update(weights_sha256(tensors).encode())
    return digest.hexdigest()


def save_state(folder: Path, problem: Problem, state: State, identity: str) -> None:
    """Write the state between two iterations as one file: it is there whole, or the one before it is."""
    now = problem.space.snapshot()
    same = all(torch.equal(a, b) for a, b in zip(now, state.best_weights, strict=True))
    tensors = {"accuracy": torch.from_numpy(state.accuracy), "best_accuracy": torch.from_numpy(state.best_accuracy)}
    tensors |= _named("now", now) | ({} if same else _named("best", state.best_weights))
    controller = state.controller
    kind = next((name for name, cls in CONTROLLERS.items() if isinstance(controller, cls)), None)
    if state.deflated is not None:
        _save_deflated(folder, state.deflated, identity)
    rest = {
        "identity": identity,
        "iteration": state.iteration,
        "idle": state.idle,
        "control": kind,
        "controller": asdict(controller) if controller else {},
        "best_is_now": same,
        "first_eigenvalue": state.first_eigenvalue,
        "flattered": state.flattered,
        "storage": asdict(problem.storage),
        "deflated": None if state.deflated is None else len(state.deflated),
    }
    save_tensors(_path(folder), tensors, {"state": json.dumps(rest)})


def load_state(folder: Path, problem: Problem, identity: str) -> State | None:
    """Bring a saved state back, its weights into the module; None where there is none yet."""
    if not _path(folder).exists():
        return None
    try:
        tensors, metadata = read_tensors(_path(folder))
        rest = json.loads(metadata["state"])
        if rest["identity"] != identity:
            raise InputError(
                f"resume: {folder} belongs to a run with other options, weights or images; give those again"
            )
        # Between two phases there is none yet.
        controller: Controller | None = CONTROLLERS[rest["control"]](**rest["controller"]) if rest["control"] else None
        problem.space.restore(_snapshot("now", tensors))
        return State(
            iteration=rest["iteration"],
            accuracy=tensors["accuracy"].numpy(),
            controller=controller,
            best_accuracy=tensors["best_accuracy"].numpy(),
            best_weights=problem.space.snapshot() if rest["best_is_now"] else _snapshot("best", tensors),
            idle=rest["idle"],
            first_eigenvalue=rest["first_eigenvalue"],
            deflated=_load_deflated(folder, problem, rest["deflated"], identity),
            flattered=rest.get("flattered", 0.0),
        )
    except (SafetensorError, OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise InputError(f"resume: {_path(folder)} cannot be read: {error}") from error


def saved_storage(folder: Path) -> Storage:
    """Where the basis of an interrupted run was kept: elsewhere, or with other room, it would not go on bit for bit."""
    _, metadata = read_tensors(_path(folder))
    return Storage(**json.loads(metadata["state"])["storage"])


def forget_state(folder: Path) -> None:
    """Remove the state of a run that is finished, and nothing else."""
    for file in (_path(folder), *_path(folder).parent.glob("deflated-*.safetensors")):
        file.unlink(missing_ok=True)
    with suppress(OSError):
        _path(folder).parent.rmdir()


def _path(folder: Path) -> Path:
    return folder / "checkpoint" / "state.safetensors"


def _save_deflated(folder: Path, vectors: Tensor, identity: str) -> None:
    """Write the deflated vectors, once a phase: they are large and do not change within it."""
    path = _deflated_path(folder, len(vectors))
    known = json.loads(read_header(path)).get("__metadata__", {}) if path.exists() else {}
    if known.get("identity") != identity:
        save_tensors(path, {"vectors": vectors.cpu()}, {"identity": identity})


def _load_deflated(folder: Path, problem: Problem, count: int | None, identity: str) -> Tensor | None:
    if count is None:
        return None
    tensors, metadata = read_tensors(_deflated_path(folder, count))
    if metadata.get("identity") != identity:
        raise InputError(f"resume: {_deflated_path(folder, count)} belongs to another run")
    return keep(tensors["vectors"], problem.space, problem.storage)


def _deflated_path(folder: Path, count: int) -> Path:
    return folder / "checkpoint" / f"deflated-{count}.safetensors"


def _named(prefix: str, snapshot: Snapshot) -> dict[str, Tensor]:
    return {f"{prefix}.{i:06d}": weight for i, weight in enumerate(snapshot)}


def _snapshot(prefix: str, tensors: dict[str, Tensor]) -> Snapshot:
    return Snapshot(tuple(tensors[name] for name in sorted(tensors) if name.startswith(f"{prefix}.")))
