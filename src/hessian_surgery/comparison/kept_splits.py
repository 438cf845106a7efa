"""What whole operations predicted so far, on disk: a killed comparison goes on from there."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from hessian_surgery.baselines.training_state import fingerprint
from hessian_surgery.comparison.compared_model import ComparedModel
from hessian_surgery.comparison.entries import OPERATIONS, Entry
from hessian_surgery.comparison.protocol import Protocol
from hessian_surgery.data.data_hash import data_hash
from hessian_surgery.distributed import agreed, together
from hessian_surgery.errors import FileError
from hessian_surgery.model.passes import Passes
from hessian_surgery.operation.config import as_surgery
from hessian_surgery.paper.config import as_loop
from hessian_surgery.ranks import present
from hessian_surgery.stored import blamed_on, parse_json
from hessian_surgery.type_check import built
from hessian_surgery.version import __version__
from hessian_surgery.weights.tensorfile import read_checked, save_checked, weights_sha256

# What the names of these files start with; an entry's name follows.
PREFIX = "splits-"

# By budget, or under None for an entry that has no budgets: predictions for all images (N,), or why
# there are none.
Predictions: TypeAlias = dict[float | None, Tensor | str]


@dataclass(frozen=True)
class DoneSplit:
    """A split of an entry that is done.

    Attributes:
        predicted: what was found.
        seconds: how long that took.
    """

    predicted: Predictions
    seconds: float


@dataclass(frozen=True)
class KeptSplits:
    """Where an entry's splits are kept.

    Attributes:
        path: the file.
        identity: a hash of all that they depend on.
        budgets: the budgets of the predictions; None for an entry that has no budgets.
        done: the splits that are done, in order.
        passes: how forward passes are made; None if no split is done and that is still to choose.
    """

    path: Path
    identity: str
    budgets: tuple[float | None, ...]
    done: tuple[DoneSplit, ...] = ()
    passes: Passes | None = None

    def read(self, splits: int) -> "KeptSplits":
        """The same with what the file holds, of so many splits at most; as it is if there is none.

        Raises:
            FileError: the file cannot be read, or it belongs to another comparison.
        """
        if not self.path.exists():
            return self
        with blamed_on(f"folder: {self.path}"):
            tensors, metadata = read_checked(self.path, "folder")
            if metadata["identity"] != self.identity:
                raise FileError(
                    f"folder: {self.path} holds splits of a comparison with other options, weights, images or labels; "
                    "give the same ones again, delete it, or choose another place"
                )
            passes = built(Passes, parse_json(metadata["passes"], f"folder: {self.path}"), "passes")
            said = parse_json(metadata["done"], f"folder: {self.path}")
            rows = zip(tensors["predicted"].long(), said["reasons"], said["seconds"], strict=True)
            done = [DoneSplit(_by_budget(self.budgets, answers, why), taken) for answers, why, taken in rows]
        return replace(self, done=tuple(done[:splits]), passes=passes)

    def save(self, done: Sequence[DoneSplit]) -> None:
        """Write the splits that are done as one file, which replaces the one before."""
        assert self.passes is not None  # they are chosen before anything is predicted
        rows = [list(split.predicted.values()) for split in done]
        images = next((len(found) for row in rows for found in row if isinstance(found, Tensor)), 0)
        none = torch.full((images,), -1, dtype=torch.int32)
        kept = [torch.stack([none if isinstance(found, str) else found.cpu().int() for found in row]) for row in rows]
        reasons = [[found if isinstance(found, str) else None for found in row] for row in rows]
        said = {
            "identity": self.identity,
            "passes": json.dumps(asdict(self.passes)),
            "done": json.dumps({"reasons": reasons, "seconds": [split.seconds for split in done]}),
        }
        save_checked(self.path, {"predicted": torch.stack(kept)}, said)


def find_kept(
    folder: Path | None, model: ComparedModel, protocol: Protocol, images: Sequence[bytes], training: Sequence[bytes]
) -> dict[str, KeptSplits]:
    """Where the splits of each whole operation are kept, by the entry's name.

    All files are read now, so that a wrong one is refused before any work; all ranks get the same.
    How many splits there are plays no part: a comparison that was killed may go on with more.

    Args:
        folder: holds the files; None keeps nothing.
        model: what is compared.
        protocol: how.
        images: the hashes of all labelled images.
        training: those of training images; at least of those that class gradients are taken over.

    Raises:
        FileError: a file cannot be read, or it belongs to another comparison.
    """
    entries = [entry for entry in protocol.entries if entry.whole and not entry.last]
    if folder is None or not entries:
        return {}
    data = model.training_data
    shared = {
        "seed": protocol.seed,
        "part": protocol.part,
        "images": data_hash(model.images, images),
        "training": [
            sha256(b"".join(training)).hexdigest(),
            weights_sha256({"index": data.index, "labels": data.labels}),
        ],
        "device": model.classifier.device.type,
        "version": __version__,
    }
    base = fingerprint(shared, model.classifier.module, model.images)
    kept: dict[str, KeptSplits] = {}
    with together():
        if present().writes:
            for entry in entries:
                kept[entry.name] = _place(folder, entry, model, protocol, base).read(protocol.splits)
    return agreed(kept)


def forget_splits(folder: Path) -> None:
    """Remove what is kept of a finished comparison."""
    if present().writes:
        for path in folder.glob(_path(folder, "*").name):
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _place(folder: Path, entry: Entry, model: ComparedModel, protocol: Protocol, base: str) -> KeptSplits:
    """Where an entry's splits are kept; `base` is a hash of what the entries share."""
    default = entry.whole in OPERATIONS
    budgets: tuple[float | None, ...] = protocol.operation_budgets if default else (None,)
    config = as_surgery(model.config) if default else as_loop(model.config)
    # What is trained first follows from the original weights, so its own need not be known yet.
    own = [base, entry.name, config.as_dict(), budgets, protocol.epochs if entry.trunk else None]
    identity = sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()
    return KeptSplits(_path(folder, entry.name), identity, budgets)


def _by_budget(budgets: Sequence[float | None], predicted: Tensor, reasons: Sequence[str | None]) -> Predictions:
    """A split's predictions (B, N) by budget, or the reason why there are none."""
    found = zip(budgets, predicted, reasons, strict=True)
    return {budget: answers if why is None else why for budget, answers, why in found}


def _path(folder: Path, name: str) -> Path:
    return folder / f"{PREFIX}{name}.safetensors"
