"""Outcome: what an operation did, as values and as a run folder."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from hessian_surgery.errors import InputError
from hessian_surgery.evidence.asked import Asked
from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.evidence.deciles import MANY_CLASSES, ClassGroup, deciles
from hessian_surgery.evidence.effective_rank import SensitivityStructure
from hessian_surgery.evidence.paired_tests import PairedTests, paired_tests
from hessian_surgery.evidence.promises import Promise, check_promises, promise_warnings
from hessian_surgery.evidence.verdict import Verdict, judge
from hessian_surgery.files import write_json, write_text
from hessian_surgery.operation.config import OperationConfig
from hessian_surgery.operation.history import history_text
from hessian_surgery.operation.iteration_record import IterationRecord
from hessian_surgery.operation.state_file import forget_state
from hessian_surgery.version import SCHEMA_VERSION
from hessian_surgery.weights.checkpoint import Checkpoint
from hessian_surgery.weights.patch import WeightPatch, make_patch
from hessian_surgery.weights.tensorfile import read_tensors, save_like, save_tensors

# How much longer intervals are with folds. The operations of the folds share images, so their
# errors are alike, and resampling images one by one understates the spread a little: without this,
# 95 % intervals of Δσ held the truth in 92 % of 300 simulated runs.
ALIKE = 1.06


@dataclass(frozen=True)
class Findings:
    """What the images say.

    Attributes:
        calibration: the images that every decision was made on, before and after.
        heldout: the images that nothing was fitted to, before and after. In folds these are all
            images, each after the operation that did not see it.
        asked: what the operation was asked for.
        tests: paired tests on the held-out images.
        promises: whether each part of what was asked for is kept there.
        verdict: what all that amounts to.
        warnings: what limits what can be said, and what was missed or broken.
        folds: how many folds there were; None if images were held out.
    """

    calibration: BeforeAfter
    heldout: BeforeAfter
    asked: Asked
    tests: PairedTests
    promises: tuple[Promise, ...]
    verdict: Verdict
    warnings: tuple[str, ...]
    folds: int | None = None

    @cached_property
    def deciles(self) -> tuple[ClassGroup, ...]:
        """Many classes in ten groups; empty if the classes can be shown one by one."""
        return deciles(self.calibration, self.heldout) if self.many else ()

    @property
    def many(self) -> bool:
        """Whether there are too many classes to show each."""
        return len(self.heldout.classes) > MANY_CLASSES

    @property
    def note(self) -> str | None:
        """What must be said beside the figures of folds; None if images were held out."""
        if self.folds is None:
            return None
        return (
            f"The delivered step is the mean of {self.folds} operations, each without one fold of the "
            f"{len(self.heldout.labels):,} images. The figures are theirs, each on the fold that it did not see."
        )


def make_findings(
    calibration: BeforeAfter,
    heldout: BeforeAfter,
    asked: Asked,
    warnings: tuple[str, ...],
    seed: int,
    folds: int | None = None,
) -> Findings:
    """All statistics, from the answers to each image; `warnings` may hold those of promises."""
    tests = paired_tests(heldout, seed)
    if folds is not None:
        tests = tests.widened(ALIKE)
    promises = check_promises(asked, heldout, tests.accuracy)
    verdict = judge(tests, len(heldout.labels), asked, promises)
    every = tuple(dict.fromkeys((*warnings, *promise_warnings(promises))))
    return Findings(calibration, heldout, asked, tests, promises, verdict, every, folds)


@dataclass(frozen=True)
class Outcome:
    """A finished operation.

    Attributes:
        config: the choices it was made with.
        findings: what changed.
        iterations: one record per iteration.
        ended: why there were no more, in one sentence.
        front: predictions for the held-out images at other objectives and budgets; None for the
            loop, and if they were not asked for.
        structure: of the first iteration's S.
        choices: what the config left open, as it was settled: K, p, which classes were protected.
        split: images in each part, what they share, and the seed.
        seconds: wall time of the operation, since it was last resumed.
        environment: versions, device and threads.
        base_weights: the starting model's state, in the dtypes that it is stored in.
        weights: the patched model's state, likewise.
        acceptance: which criteria it had to meet, and which it failed; None where there were none.
        fold_of: the fold (N,) of each image, from 0; None if images were held out.
    """

    config: OperationConfig
    findings: Findings
    iterations: tuple[IterationRecord, ...]
    ended: str
    front: dict[str, Any] | None
    structure: SensitivityStructure
    choices: dict[str, Any]
    split: dict[str, Any]
    seconds: float
    environment: dict[str, Any]
    base_weights: Mapping[str, Tensor]
    weights: Mapping[str, Tensor]
    acceptance: dict[str, Any] | None = None
    fold_of: Tensor | None = None

    @property
    def verdict(self) -> Verdict:
        """What the tests on the held-out images amount to."""
        return self.findings.verdict

    def as_dict(self) -> dict[str, Any]:
        """The contents of `result.json`: fractions, not percent; classes in order."""
        found = self.findings
        metrics = {"calibration": found.calibration.metrics(), "heldout": found.heldout.metrics()}
        return {
            "schema_version": SCHEMA_VERSION,
            "method": "hessian-surgery",
            "classes": list(found.heldout.classes),
            "seed": self.config.seed,
            "before": {name: pair[0].as_dict() for name, pair in metrics.items()},
            "after": {name: pair[1].as_dict() for name, pair in metrics.items()},
            "iterations": [record.as_dict() for record in self.iterations],
            "ended": self.ended,
            "front": self.front,
            "asked": found.asked.as_dict(),
            "verdict": asdict(found.verdict),
            "promises": [promise.as_dict() for promise in found.promises],
            "warnings": list(found.warnings),
            "tests": found.tests.as_dict(),
            "deciles": [group.as_dict() for group in found.deciles],
            "split": self.split,
            "diagnosis": asdict(self.structure),
            "choices": self.choices,
            "seconds": self.seconds,
            "environment": self.environment,
            "acceptance": self.acceptance,
        }

    def config_file(self, inputs: Mapping[str, Any] | None) -> dict[str, Any]:
        """The contents of `config.json`."""
        return self.config.as_dict() | {"inputs": dict(inputs or {})}

    def patch(self, source: Checkpoint | None = None) -> WeightPatch:
        """What turns the starting weights into the patched ones and back."""
        file, header = (source.sha256, source.header) if source else ("", "")
        return make_patch(self.base_weights, self.weights, file, header)

    def save(
        self,
        folder: str | Path,
        source: Checkpoint | None = None,
        inputs: Mapping[str, Any] | None = None,
        patch: WeightPatch | None = None,
    ) -> None:
        """Write the run folder. `result.json` comes last: if it is there, all is.

        Args:
            folder: made if it does not exist.
            source: the checkpoint that the model came from. `model.safetensors` gets its header,
                the patch its hash.
            inputs: what was operated on, as it was named, for `config.json`.
            patch: that of `self.patch(source)`, if it is at hand.
        """
        folder = Path(folder)
        if (folder / "result.json").exists():
            raise InputError(f"folder: {folder} holds a finished run; give another")
        found = self.findings
        write_json(folder / "config.json", self.config_file(inputs))
        write_text(folder / "history.jsonl", history_text(self.iterations))
        parts = {"calibration": found.calibration, "heldout": found.heldout}
        named = {f"{part}.{key}": t for part, images in parts.items() for key, t in images.tensors().items()}
        if self.fold_of is not None:
            named["heldout.fold"] = self.fold_of + 1
        save_tensors(folder / "predictions.safetensors", named)
        (patch or self.patch(source)).save(folder / "patch.safetensors")
        if source is not None and source.header:
            save_like(folder / "model.safetensors", source.header, self.weights)
        else:
            save_tensors(folder / "model.safetensors", self.weights)
        write_json(folder / "result.json", self.as_dict())
        forget_state(folder)


def load_findings(folder: Path) -> Findings:
    """Every statistic of a finished run, made again from `predictions.safetensors`."""
    result = read_result(folder)
    try:
        tensors, _ = read_tensors(folder / "predictions.safetensors")
        classes = tuple(result["classes"])
        parts = [
            BeforeAfter.from_tensors(
                {key.removeprefix(f"{part}."): t for key, t in tensors.items() if key.startswith(f"{part}.")}, classes
            )
            for part in ("calibration", "heldout")
        ]
    except (OSError, SafetensorError, KeyError) as error:
        raise InputError(f"run: {folder}/predictions.safetensors cannot be read: {error}") from error
    asked = Asked(**result["asked"])
    folds = result["split"].get("folds")
    return make_findings(parts[0], parts[1], asked, tuple(result["warnings"]), result["seed"], folds)


def read_result(folder: Path) -> dict[str, Any]:
    """The contents of `result.json`."""
    try:
        content: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        hint = "; it is unfinished: operate --resume goes on with it" if (folder / "history.jsonl").exists() else ""
        raise InputError(f"run: {folder} holds no finished run (no readable result.json){hint}") from error
    version = content.get("schema_version")
    if version != SCHEMA_VERSION:
        raise InputError(
            f"run: {folder} was written by another version (schema {version}, this one reads {SCHEMA_VERSION}); "
            "operate again"
        )
    return content
