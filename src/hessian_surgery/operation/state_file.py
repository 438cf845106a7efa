"""The state of a run on disk, so that a killed run goes on and ends bit for bit the same."""

import hashlib
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from torch import Tensor

from hessian_surgery.curvature.basis import Storage
from hessian_surgery.data import batches
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.errors import InputError
from hessian_surgery.model.parameters import Snapshot
from hessian_surgery.model.passes import Passes
from hessian_surgery.operation.problem import Problem
from hessian_surgery.ranks import present
from hessian_surgery.stored import blamed_on, parse_json
from hessian_surgery.type_check import built
from hessian_surgery.weights.tensorfile import read_checked, read_metadata, save_checked, weights_sha256

# A state in a file: tensors by name, and plain values.
Packed: TypeAlias = tuple[dict[str, Tensor], dict[str, Any]]

# What a fold found, and all files that say how passes were made.
FOUND = "answers.safetensors"
STATES = ("state.safetensors", f"fold-*/{FOUND}", "fold-*/checkpoint/state.safetensors")

S = TypeVar("S")
Unpack: TypeAlias = Callable[[Path, Problem[Any], dict[str, Tensor], dict[str, Any], str], S]


def fingerprint(problem: Problem[Any]) -> str:
    """A hash of all that a run depends on: choices, weights and buffers, images, labels."""
    asked = None if problem.criteria is None else asdict(problem.criteria)
    digest = hashlib.sha256(json.dumps([problem.config.as_dict(), asked], sort_keys=True).encode())
    digest.update(weights_sha256(problem.classifier.module.state_dict()).encode())
    _add(digest, problem.calibration_data)
    if problem.gradient_data is not None:
        _add(digest, problem.gradient_data)
    if problem.finder is not None:
        # A pool that batches are redrawn from is not held: its images are not read here.
        _add(digest, problem.finder.data, with_inputs=not problem.config.search.redraw_hessian)
    return digest.hexdigest()


def _add(digest: Any, data: LabelledSet, with_inputs: bool = True) -> None:
    digest.update(repr(data.classes).encode())
    tensors = {"index": data.index, "labels": data.labels}
    if with_inputs:
        tensors |= {str(i): tensor for i, tensor in enumerate(batches.tensors(data.inputs()))}
    digest.update(weights_sha256(tensors).encode())


def save_state(folder: Path, problem: Problem[Any], packed: Packed, identity: str, history: str = "") -> None:
    """Write the state between two iterations as one file, which replaces the one before.

    Args:
        folder: the run folder.
        problem: what is operated on.
        packed: the algorithm's state.
        identity: the run's fingerprint.
        history: the hash of the lines of `history.jsonl` so far.
    """
    tensors, plain = packed
    storage = asdict(problem.finder.storage) if problem.finder else None
    rest = {"identity": identity, "storage": storage, "algorithm": plain}
    held = tensors | name_weights("now", problem.space.snapshot())
    said = {"state": json.dumps(rest), "history": history}
    save_checked(_path(folder), held, said | passes_metadata(problem))


def kept_history(folder: Path) -> str:
    """The hash of the history that the state in a folder belongs to."""
    return read_metadata(_path(folder)).get("history", "")


def passes_metadata(problem: Problem[Any]) -> dict[str, str]:
    """How a run makes its passes, for `load_passes`."""
    return {"passes": json.dumps(asdict(problem.passes))}


def load_passes(folder: Path) -> Passes | None:
    """How the interrupted run made its passes; None if there is no state yet.

    Other passes round differently: the run would not go on bit for bit.
    """
    kept = state_folder(folder)
    path = next((path for name in STATES for path in sorted(kept.glob(name))), None)
    if path is None:
        return None
    what = f"resume: {path}"
    with blamed_on(what):
        return built(Passes, parse_json(read_metadata(path).get("passes", ""), what), "passes")


def load_state(folder: Path, problem: Problem[Any], identity: str, unpack: Unpack[S]) -> tuple[Problem[Any], S] | None:
    """Bring a saved state back, its weights into the module; None if there is no state yet.

    The problem comes back with the Lanczos basis where the interrupted run kept it: elsewhere, or
    with other room, the run would not go on bit for bit.
    """
    if not _path(folder).exists():
        return None
    with blamed_on(f"resume: {_path(folder)}"):
        tensors, metadata = read_checked(_path(folder))
        rest = parse_json(metadata["state"], f"resume: {_path(folder)}")
        if rest["identity"] != identity:
            raise InputError(
                f"resume: {folder} belongs to a run with other options, weights or images; give those again"
            )
        problem.space.restore(find_weights("now", tensors))
        if problem.finder is not None:
            problem = replace(problem, finder=replace(problem.finder, storage=built(Storage, rest["storage"])))
        return problem, unpack(folder, problem, tensors, rest["algorithm"], identity)


def forget_state(folder: Path) -> None:
    """Remove the state of a finished run and of its folds, and nothing else.

    Only the rank that wrote it does: two at once would find files gone that they have just seen.
    """
    if not present().writes:
        return
    for fold in state_folder(folder).glob("fold-*"):
        shutil.rmtree(fold, ignore_errors=True)
    for file in state_folder(folder).glob("state*.safetensors"):
        file.unlink(missing_ok=True)
    with suppress(OSError):
        state_folder(folder).rmdir()


def state_folder(folder: Path) -> Path:
    """Where a run folder keeps its state."""
    return folder / "checkpoint"


def name_weights(prefix: str, snapshot: Snapshot) -> dict[str, Tensor]:
    """A snapshot's tensors by names that a file can hold."""
    return {f"{prefix}.{i:06d}": weight for i, weight in enumerate(snapshot)}


def find_weights(prefix: str, tensors: dict[str, Tensor]) -> Snapshot:
    """The inverse of `name_weights`."""
    return Snapshot(tuple(tensors[name] for name in sorted(tensors) if name.startswith(f"{prefix}.")))


def _path(folder: Path) -> Path:
    return state_folder(folder) / "state.safetensors"
