"""Outcome: what an operation did, as values and as a run folder."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from hessian_surgery.errors import InputError
from hessian_surgery.evidence.asked import Asked
from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.evidence.costs import REMEDY
from hessian_surgery.evidence.criteria import CheckedCriterion
from hessian_surgery.evidence.effective_rank import SensitivityStructure
from hessian_surgery.evidence.simpler import load_simpler
from hessian_surgery.evidence.verdict import Verdict
from hessian_surgery.file_shapes import ResultShape
from hessian_surgery.files import write_json, write_text
from hessian_surgery.operation.acceptance_criteria import check_criteria, criteria_from
from hessian_surgery.operation.answer_text import answer_html, answer_text, class_rows
from hessian_surgery.operation.config import OperationConfig
from hessian_surgery.operation.findings import Findings, make_findings
from hessian_surgery.operation.history import history_text
from hessian_surgery.operation.iteration_record import IterationRecord
from hessian_surgery.operation.state_file import forget_state
from hessian_surgery.stored import blamed_on, read_versioned
from hessian_surgery.type_check import built
from hessian_surgery.version import SCHEMA_VERSION
from hessian_surgery.weights.changed import WeightChanges
from hessian_surgery.weights.checkpoint import Checkpoint
from hessian_surgery.weights.folder import save_folder
from hessian_surgery.weights.patch import WeightPatch, patch_of
from hessian_surgery.weights.tensorfile import read_tensors, save_like, save_tensors


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
        date: when it ended, UTC, ISO 8601.
        model: the name of the module's class.
        data: for each part of the data its `images` and their `sha256`.

    Example:
        >>> outcome
        Outcome(Better; 600 samples of 3 classes judge; summary(), rows() and table() say more)
        >>> [row["class"] for row in outcome.rows() if row["change"] > 0]
        ['bee', 'cat']
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
    date: str = ""
    model: str = ""
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """What the tests on the held-out images amount to."""
        return self.findings.verdict

    @property
    def accepted(self) -> bool | None:
        """Whether every acceptance criterion is met on the held-out images; None without any."""
        return None if self.acceptance is None else not self.acceptance["failed"]

    def __repr__(self) -> str:
        held = self.findings.heldout
        size = f"{len(held.labels):,} {self.findings.noun} of {len(held.classes):,} classes judge"
        return f"Outcome({self.verdict.headline}; {size}; summary(), rows() and table() say more)"

    def _repr_html_(self) -> str:
        """What a notebook shows: the answer, the classes and the warnings."""
        return answer_html(self.findings)

    def summary(self) -> str:
        """What was asked and whether it is met, what changed, and what it costs, in a few lines."""
        return answer_text(self.findings)

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each class, on the held-out images, in class order.

        Its keys: `class`, `count`; accuracies `before` and `after` as fractions, with the 95 %
        interval `after_low` to `after_high`; `change`; how many images were `gained` and `lost`;
        `p_holm`, McNemar's p-value with Holm's correction, None if the class has too few images.
        """
        return class_rows(self.findings)

    def table(self) -> Any:
        """The same as a pandas `DataFrame`, if pandas is installed."""
        try:
            import pandas
        except ImportError as error:
            raise InputError("table: it needs pandas, which is not installed; rows() has the same in dicts") from error
        return pandas.DataFrame(self.rows())

    def as_dict(self) -> dict[str, Any]:
        """The contents of `result.json`: fractions, not percent; classes in order."""
        found = self.findings
        metrics = {"calibration": found.calibration.metrics(), "heldout": found.heldout.metrics()}
        head = {"schema_version": SCHEMA_VERSION, "method": "hessian-surgery", "date": self.date}
        return (
            head
            | found.as_dict()
            | {
                "acceptance": self.acceptance,
                "model": self.model,
                "data": self.data,
                "classes": list(found.heldout.classes),
                "seed": self.config.seed,
                "before": {name: pair[0].as_dict() for name, pair in metrics.items()},
                "after": {name: pair[1].as_dict() for name, pair in metrics.items()},
                "iterations": [record.as_dict() for record in self.iterations],
                "ended": self.ended,
                "front": self.front,
                "split": self.split,
                "diagnosis": asdict(self.structure),
                "choices": self.choices,
                "seconds": self.seconds,
                "environment": self.environment,
            }
        )

    def config_file(self, inputs: Mapping[str, Any] | None) -> dict[str, Any]:
        """The contents of `config.json`."""
        return self.config.as_dict() | {"inputs": dict(inputs or {})}

    def patch(self, source: Checkpoint | None = None) -> WeightPatch:
        """What turns the starting weights into the patched ones and back."""
        return patch_of(source, self.base_weights, self.weights)

    def with_patch(self, patch: WeightPatch) -> "Outcome":
        """The same, with the size of its patch."""
        changed = self.findings.changed
        changed = None if changed is None else replace(changed, patch_bytes=patch.file_bytes)
        return replace(self, findings=replace(self.findings, changed=changed))

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
                the patch its hash. For a model folder, a folder `model` is written instead.
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
        if found.simpler is not None:
            named |= {f"heldout.{key}": t for key, t in found.simpler.tensors().items()}
        save_tensors(folder / "predictions.safetensors", named)
        patch = patch or self.patch(source)
        patch.save(folder / "patch.safetensors")
        if source is not None and source.shards:
            save_folder(folder / "model", source.path, source.shards, source.in_file(self.weights))
        elif source is not None and source.header:
            save_like(folder / "model.safetensors", source.header, self.weights)
        else:
            save_tensors(folder / "model.safetensors", self.weights)
        write_json(folder / "result.json", self.with_patch(patch).as_dict())
        forget_state(folder)


def load_findings(folder: Path) -> Findings:
    """Every statistic of a finished run, made again from `predictions.safetensors`."""
    result = read_result(folder)
    with blamed_on(f"run: {folder}/predictions.safetensors"):
        tensors, _ = read_tensors(folder / "predictions.safetensors", "run")
        classes = tuple(result["classes"])
        parts = [
            BeforeAfter.from_tensors(
                {key.removeprefix(f"{part}."): t for key, t in tensors.items() if key.startswith(f"{part}.")}, classes
            )
            for part in ("calibration", "heldout")
        ]
    with blamed_on(f"run: {folder}"):
        return _findings(result, parts[0], parts[1], tensors)


def _findings(
    result: dict[str, Any], calibration: BeforeAfter, heldout: BeforeAfter, tensors: Mapping[str, Tensor]
) -> Findings:
    """The statistics of a run, from the contents of its files."""
    recalibrated = result.get("recalibrated")
    findings = make_findings(
        calibration,
        heldout,
        built(Asked, result["asked"], "asked"),
        tuple(result["warnings"]),
        result["seed"],
        folds=result["split"].get("folds"),
        temperature=recalibrated and recalibrated["temperature"],
        # Where the head may not move the run did not advise it.
        free=any(REMEDY in warning for warning in result["warnings"]),
        criteria=_checked(result["acceptance"], heldout),
        noun=result.get("noun", "images"),
    )
    changed = result.get("changed")
    findings = replace(findings, changed=changed and WeightChanges.from_dict(changed))
    return findings.with_simpler(load_simpler(heldout, tensors, result))


def _checked(acceptance: dict[str, Any] | None, heldout: BeforeAfter) -> tuple[CheckedCriterion, ...]:
    """The criteria of a finished run; runs of earlier versions hold no advice."""
    if acceptance is None:
        return ()
    if "checked" in acceptance:
        return tuple(map(CheckedCriterion.from_dict, acceptance["checked"]))
    return check_criteria(criteria_from(acceptance["criteria"]), heldout)


def read_result(folder: Path) -> dict[str, Any]:
    """The contents of `result.json`."""
    path = folder / "result.json"
    if not path.is_file():
        hint = "; it is unfinished: resume=True goes on with it" if (folder / "history.jsonl").exists() else ""
        raise InputError(f"run: {folder} holds no finished run (no readable result.json){hint}")
    content = read_versioned(path, "run", ResultShape, "operate")
    if not content["iterations"] or not content["classes"]:
        raise InputError(f"run: {path} names no class or no iteration, so it is damaged; operate again")
    return content
