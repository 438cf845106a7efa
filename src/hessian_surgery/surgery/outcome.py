"""Outcome: what an operation did, as values and as a run folder."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from hessian_surgery.evidence import PairedTests, Verdict
from hessian_surgery.files import write_json, write_text, written_beside
from hessian_surgery.metrics import Metrics
from hessian_surgery.patch import WeightPatch, make_patch
from hessian_surgery.surgery.config import SurgeryConfig
from hessian_surgery.surgery.diagnosis import SensitivityStructure
from hessian_surgery.surgery.loop import IterationRecord, Observer

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Comparison:
    """One set of images before and after.

    Attributes:
        index: (N,) where each image stands in its source.
        labels: (N,).
        predicted_before: (N,) predicted classes of the starting model.
        predicted_after: (N,) of the patched one.
        before: metrics of the starting model.
        after: metrics of the patched one.
    """

    index: Tensor
    labels: Tensor
    predicted_before: Tensor
    predicted_after: Tensor
    before: Metrics
    after: Metrics

    def tensors(self) -> dict[str, Tensor]:
        """What every statistic can be recomputed from."""
        return {
            "index": self.index,
            "label": self.labels,
            "before": self.predicted_before,
            "after": self.predicted_after,
        }


@dataclass(frozen=True)
class Outcome:
    """A finished operation.

    Attributes:
        config: the choices it was made with.
        classes: class names.
        iterations: one record per iteration.
        sensitivity: the images that every decision was made on, before and after.
        heldout: the images that nothing was fitted to, before and after.
        tests: paired tests on the held-out images.
        verdict: what they amount to.
        structure: of the first iteration's S.
        warnings: what limits what can be said.
        split: images in each part, and the seed.
        seconds: wall time of the whole operation.
        environment: versions, device and threads.
        base_weights: the starting model's state, in the dtypes that it is stored in.
        weights: the patched model's state, likewise.
    """

    config: SurgeryConfig
    classes: tuple[str, ...]
    iterations: tuple[IterationRecord, ...]
    sensitivity: Comparison
    heldout: Comparison
    tests: PairedTests
    verdict: Verdict
    structure: SensitivityStructure
    warnings: tuple[str, ...]
    split: dict[str, int]
    seconds: float
    environment: dict[str, Any]
    base_weights: Mapping[str, Tensor]
    weights: Mapping[str, Tensor]

    def as_dict(self) -> dict[str, Any]:
        """The contents of `result.json`: fractions, not percent; classes in order."""
        parts = {"sensitivity": self.sensitivity, "heldout": self.heldout}
        return {
            "schema_version": SCHEMA_VERSION,
            "method": "hessian-surgery",
            "classes": list(self.classes),
            "seed": self.config.seed,
            "before": {name: part.before.as_dict() for name, part in parts.items()},
            "after": {name: part.after.as_dict() for name, part in parts.items()},
            "iterations": [record.as_dict() for record in self.iterations],
            "verdict": asdict(self.verdict),
            "warnings": list(self.warnings),
            "tests": self.tests.as_dict(),
            "split": self.split,
            "diagnosis": asdict(self.structure),
            "seconds": self.seconds,
            "environment": self.environment,
        }

    def patch(self, base_sha256: str = "") -> WeightPatch:
        """What turns the starting weights into the patched ones and back."""
        return make_patch(self.base_weights, self.weights, base_sha256)

    def save(self, folder: str | Path, *, base_sha256: str = "", metadata: Mapping[str, str] | None = None) -> None:
        """Write the run folder; `result.json` comes last, so that its presence means that all is there.

        Args:
            folder: made where it does not exist.
            base_sha256: hash of the checkpoint file that the model came from, for the patch.
            metadata: of that file, carried over to `model.safetensors`.
        """
        folder = Path(folder)
        write_json(folder / "config.json", self.config.as_dict())
        write_text(folder / "history.jsonl", "".join(history_line(record) for record in self.iterations))
        parts = {"sensitivity": self.sensitivity, "heldout": self.heldout}
        named = {f"{part}.{key}": t for part, images in parts.items() for key, t in images.tensors().items()}
        save_tensors(folder / "predictions.safetensors", named)
        self.patch(base_sha256).save(folder / "patch.safetensors")
        save_tensors(folder / "model.safetensors", self.weights, metadata)
        write_json(folder / "result.json", self.as_dict())


class HistoryWriter(Observer):
    """Appends each iteration to `history.jsonl` as it ends, and passes everything on."""

    def __init__(self, folder: Path, inner: Observer) -> None:
        self._path = folder / "history.jsonl"
        self._inner = inner

    def stage(self, name: str, done: int, total: int) -> None:
        """Pass it on."""
        self._inner.stage(name, done, total)

    def iteration(self, record: IterationRecord) -> None:
        """Write the line, then pass it on. The first line makes the folder: a run that never starts leaves none."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("w" if record.iteration == 1 else "a", encoding="utf-8") as file:
            file.write(history_line(record))
        self._inner.iteration(record)


def history_line(record: IterationRecord) -> str:
    """One line of `history.jsonl`."""
    return json.dumps(record.as_dict()) + "\n"


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file; tied tensors are written once for each name."""
    with written_beside(path) as beside:
        own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        save_file(own, beside, {"format": "pt"} | dict(metadata or {}))
