"""Run: all that a report says about a finished operation, from the operation itself or from its folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessian_surgery.files import read_json
from hessian_surgery.operation.outcome import Findings, Outcome, load_findings, read_result
from hessian_surgery.report.sensitivity import COEFFICIENT, LENGTH, spike_names
from hessian_surgery.weights.checkpoint import Checkpoint
from hessian_surgery.weights.patch import WeightPatch, load_patch


@dataclass(frozen=True)
class Run:
    """A finished operation.

    Attributes:
        findings: what the images say.
        result: the contents of `result.json`.
        config: the contents of `config.json`.
        hashes: of the checkpoint file, where there was one, and of the weights before and after.
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
    def unit(self) -> str:
        """What the rows of S count along."""
        return COEFFICIENT if self.config["algorithm"] == "planned" else LENGTH

    @property
    def front(self) -> dict[str, Any] | None:
        """What other budgets and objectives are foreseen to do, where the operation computed it."""
        return self.result.get("front")


def run_of(outcome: Outcome, source: Checkpoint | None, inputs: Mapping[str, Any]) -> Run:
    """The run that `outcome.save(folder, source, inputs)` writes."""
    return Run(outcome.findings, outcome.as_dict(), outcome.recorded(inputs), _hashes(outcome.patch(source)))


def load_run(folder: Path) -> Run:
    """The run that a folder holds; every statistic is made again from the answers to each image."""
    result = read_result(folder)
    return Run(
        findings=load_findings(folder),
        result=result,
        config=read_json(folder / "config.json", "run"),
        hashes=_hashes(load_patch(folder / "patch.safetensors")),
    )


def direction_names(run: Run) -> list[str]:
    """What each row of S is: a bias, a class gradient or a spike; its number where that cannot be told."""
    first = run.result["iterations"][0]
    rows, spikes, classes = len(first["sensitivity"]), len(first["eigenvalues"]), run.classes
    named: list[str] | None = run.result["choices"].get("direction_names")
    if named is not None:
        return named
    if rows == spikes:
        return spike_names(rows)
    gradients = [f"gradient of {name}" for name in classes] if run.config["directions"] != "spikes" else []
    tail = [*gradients, *spike_names(spikes)]
    # Left out are biases where the head has none or it may not move, and gradients that are next to nothing.
    for found in ([*(f"bias of {name}" for name in classes), *tail], tail):
        if len(found) == rows:
            return found
    return [f"direction {i + 1}" for i in range(rows)]


def _hashes(patch: WeightPatch) -> dict[str, str]:
    found = {
        "checkpoint file": patch.base_file,
        "weights before": patch.base_weights,
        "weights after": patch.patched_weights,
    }
    return {name: value for name, value in found.items() if value}
