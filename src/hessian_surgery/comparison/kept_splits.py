"""What whole operations predicted so far, on disk: a killed comparison goes on from there."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from hessian_surgery.baselines.training_state import fingerprint
from hessian_surgery.comparison.compared_model import ComparedModel
from hessian_surgery.comparison.protocol import Protocol
from hessian_surgery.data.data_hash import data_hash
from hessian_surgery.distributed import agreed, together
from hessian_surgery.errors import FileError
from hessian_surgery.model.passes import Passes
from hessian_surgery.operation.config import OperationConfig
from hessian_surgery.ranks import present
from hessian_surgery.stored import blamed_on, parse_json
from hessian_surgery.type_check import built
from hessian_surgery.version import __version__
from hessian_surgery.weights.tensorfile import read_checked, read_metadata, save_checked, weights_sha256

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
        passes: how forward passes are made.
    """

    path: Path
    identity: str
    passes: Passes

    def load(self, budgets: Sequence[float | None]) -> list[DoneSplit]:
        """The splits that are done, in order; none if there is no file. All ranks get the same.

        Raises:
            FileError: the file cannot be read, or it belongs to another comparison.
        """
        found: list[DoneSplit] = []
        with together():
            if present().writes and self.path.exists():
                found = _read(self.path, self.identity, budgets)
        return agreed(found)

    def save(self, done: Sequence[DoneSplit]) -> None:
        """Write the splits that are done as one file, which replaces the one before."""
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


def keep_splits(
    folder: Path | None, name: str, model: ComparedModel, config: OperationConfig, protocol: Protocol
) -> KeptSplits | None:
    """Where an entry's splits are kept in a folder; None without one.

    How many splits there are plays no part: a comparison that was killed may go on with more.
    """
    if folder is None:
        return None
    training = model.training_data
    choices = {
        "entry": name,
        "config": config.as_dict(),
        "budgets": protocol.budgets,
        "seed": protocol.seed,
        "part": protocol.part,
        "images": data_hash(model.images),
        "training": weights_sha256({"index": training.index, "labels": training.labels}),
        "device": model.classifier.device.type,
        "version": __version__,
    }
    return KeptSplits(_path(folder, name), fingerprint(choices, model.classifier.module, model.images), model.passes)


def kept_passes(folder: Path | None, names: Sequence[str]) -> Passes | None:
    """How a killed comparison of these entries made its passes; None if no split of them is kept.

    Other passes round differently: the splits that are left would not be as they would have been.
    """
    found = None
    with together():
        if folder is not None and present().writes:
            path = next(filter(Path.exists, (_path(folder, name) for name in names)), None)
            found = None if path is None else _read_passes(path)
    return agreed(found)


def forget_splits(folder: Path, names: Sequence[str]) -> None:
    """Remove what is kept of these entries of a finished comparison."""
    if present().writes:
        for name in names:
            with suppress(OSError):
                _path(folder, name).unlink(missing_ok=True)


def _read_passes(path: Path) -> Passes:
    with blamed_on(f"folder: {path}"):
        metadata = read_metadata(path, "folder")
        return built(Passes, parse_json(metadata["passes"], f"folder: {path}"), "passes")


def _read(path: Path, identity: str, budgets: Sequence[float | None]) -> list[DoneSplit]:
    with blamed_on(f"folder: {path}"):
        tensors, metadata = read_checked(path, "folder")
        if metadata["identity"] != identity:
            raise FileError(
                f"folder: {path} holds splits of a comparison with other options, weights, images or labels; "
                "give the same ones again, delete it, or choose another place"
            )
        done = parse_json(metadata["done"], f"folder: {path}")
        splits = zip(tensors["predicted"].long(), done["reasons"], done["seconds"], strict=True)
        return [DoneSplit(_by_budget(budgets, answers, why), taken) for answers, why, taken in splits]


def _by_budget(budgets: Sequence[float | None], predicted: Tensor, reasons: Sequence[str | None]) -> Predictions:
    """A split's predictions (B, N) by budget, or the reason why there are none."""
    found = zip(budgets, predicted, reasons, strict=True)
    return {budget: answers if why is None else why for budget, answers, why in found}


def _path(folder: Path, name: str) -> Path:
    return folder / f"{PREFIX}{name}.safetensors"
