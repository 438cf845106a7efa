"""Run: a finished operation as reports need it, from memory or from its folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessian_surgery.file_shapes import ConfigShape
from hessian_surgery.operation.findings import Findings
from hessian_surgery.operation.outcome import Outcome, load_findings, read_result
from hessian_surgery.report.figure_data import Responses, Spike, make_spikes
from hessian_surgery.stored import read_json
from hessian_surgery.weights.patch import WeightPatch, load_patch


@dataclass(frozen=True)
class Run:
    """A finished operation.

    Attributes:
        findings: what changed for the calibration and the held-out images.
        result: the contents of `result.json`.
        config: the contents of `config.json`.
        hashes: SHA-256 of images, of the weights before and after, and of the checkpoint file if
            there is one.
    """

    findings: Findings
    result: dict[str, Any]
    config: dict[str, Any]
    hashes: dict[str, str]

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names."""
        return self.findings.heldout.classes

    @property
    def responses(self) -> Responses:
        """How the classes responded to each direction in the first iteration."""
        first = self.result["iterations"][0]
        recorded = first["responses"]
        total = len(first["coefficients"])
        of = total if total > len(recorded["directions"]) else None
        return Responses(recorded["directions"], self.classes, recorded["values"], recorded["unit"], of)

    @property
    def spikes(self) -> list[Spike]:
        """Spikes of the first iteration; empty if none were sought."""
        first = self.result["iterations"][0]
        if not first["eigenvalues"]:
            return []
        return make_spikes(first["eigenvalues"], first["residuals"], self.tolerance)

    @property
    def tolerance(self) -> float:
        """Relative residual at which a spike has converged."""
        return self.config["search"]["tolerance"]

    @property
    def date(self) -> str:
        """Day and minute when it ended, UTC; empty in runs of earlier versions."""
        return str(self.result.get("date", ""))[:16].replace("T", " ")

    @property
    def failed_criteria(self) -> list[str] | None:
        """Acceptance criteria that the run does not meet; None if it had to meet none."""
        acceptance: dict[str, Any] | None = self.result.get("acceptance")
        return None if acceptance is None else acceptance["failed"]


def run_of(outcome: Outcome, patch: WeightPatch, inputs: Mapping[str, Any]) -> Run:
    """Make the run that `outcome.save` writes.

    Args:
        outcome: the finished operation.
        patch: its patch, `outcome.patch(source)`.
        inputs: the options that it was started with; empty if it was called from Python.
    """
    outcome = outcome.with_patch(patch)
    result = outcome.as_dict()
    return Run(outcome.findings, result, outcome.config_file(inputs), _hashes(patch, result))


def load_run(folder: Path) -> Run:
    """Read a run from its folder; every statistic is computed again from the stored predictions."""
    result = read_result(folder)
    return Run(
        findings=load_findings(folder),
        result=result,
        config=read_json(folder / "config.json", "run", ConfigShape),
        hashes=_hashes(load_patch(folder / "patch.safetensors"), result),
    )


def _hashes(patch: WeightPatch, result: Mapping[str, Any]) -> dict[str, str]:
    data = result.get("data", {})
    images = {f"{name} {result.get('noun', 'images')}": part["sha256"] for name, part in data.items()}
    found = images | {
        "checkpoint file": patch.base_file,
        "weights before": patch.base_weights,
        "weights after": patch.patched_weights,
    }
    return {name: value for name, value in found.items() if value}
