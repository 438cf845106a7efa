"""Can the gain of an operation be predicted?

A case holds, for one model, what `diagnose` finds beforehand and the gain that `compare` measures.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm
from torch import nn

from hessian_surgery.comparison.compare import compare
from hessian_surgery.comparison.protocol import Protocol
from hessian_surgery.data.sources import Parts
from hessian_surgery.data.splits import join_sets
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.metrics import sampling_sigma
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.operation.config import OperationConfig, SurgeryConfig
from hessian_surgery.operation.observer import Observer
from hessian_surgery.page_shapes import PredictorsShape
from hessian_surgery.paper.diagnosis import diagnose
from hessian_surgery.stored import blamed_on, checked, read_json
from hessian_surgery.type_check import built

# The method whose gain is predicted by default.
METHOD = "spikes"
PREDICTORS = {
    "error_ratio": "largest over smallest class error",
    "exponent": "p by the p-rule",
    "effective_rank": "effective rank of S",
    "bias_share": "bias-R² of the spikes",
    "sigma": "σ",
    "accuracy": "accuracy",
    "sigma_over_noise": "σ over sampling noise",
}
GAINS = {
    "fall": "fall of σ",
    "relative_fall": "fall of σ as a share of it",
    "ahead_of_bias": "σ below class bias at equal accuracy",
}


@dataclass(frozen=True)
class Estimate:
    """A figure, as a fraction, and its standard error over images; None if it is not known."""

    value: float
    error: float | None = None


@dataclass(frozen=True)
class Case:
    """One model: what was known before an operation, and the gain.

    Attributes:
        name: of the model.
        group: its data set; models are also compared within their group.
        images: the number of images that the gain was measured on, in halves.
        predictors: figures known beforehand, by the names in `PREDICTORS`; accuracies and σ are
            fractions.
        gains: on held-out images at the headline budget, by the names in `GAINS`; above 0 is
            better. Gains that the comparison does not have are left out.
        delta_accuracy: the change of accuracy that came with the gain, a fraction.
    """

    name: str
    group: str
    images: int
    predictors: dict[str, float]
    gains: dict[str, Estimate]
    delta_accuracy: float


def examine_model(
    model: nn.Module | Classifier,
    parts: Parts,
    name: str,
    group: str,
    *,
    method: str = METHOD,
    splits: int = 5,
    config: OperationConfig | None = None,
    observer: Observer | None = None,
) -> Case:
    """Diagnose a model and compare a method with class bias on it.

    Args:
        model: the trained classifier; it is not changed.
        parts: its data. `diagnose` uses the calibration data, `compare` the held-out data as well.
        name: of the model.
        group: its data set.
        method: an entry of a comparison.
        splits: the number of splits of the comparison.
        config: how spikes are sought.
        observer: told about progress.
    """
    config = config or SurgeryConfig()
    training, calibration = parts.training, parts.calibration
    diagnosis = diagnose(model, training_data=training, calibration_data=calibration, config=config, spikes="auto")
    fronts = compare(
        model,
        data=join_sets(parts.calibration, parts.heldout),
        training_data=parts.training,
        # The bias-R² of the spikes is a predictor for every method.
        protocol=Protocol(methods=tuple(dict.fromkeys((method, "spikes"))), splits=splits, seed=config.seed),
        config=config,
        observer=observer,
    )
    return make_case(name, group, diagnosis.as_dict(), fronts.as_dict(), method)


def make_case(name: str, group: str, diagnosis: dict[str, Any], comparison: dict[str, Any], method: str) -> Case:
    """Make a case from what `diagnose --json` and `compare --json` print."""
    metrics = diagnosis["metrics"]
    shares = comparison["bias_shares"].get("spikes")
    if not shares:
        raise InputError(f"comparison: the one of {name} has no spikes; run it again with the method spikes")
    if list(diagnosis["classes"]) != list(comparison["classes"]):
        raise InputError(
            f"comparison: the one of {name} has other classes than its diagnosis; give two files about the same model"
        )
    noise = sampling_sigma(np.array(metrics["per_class"]), np.array(metrics["count"], dtype=np.float64))
    predictors = {
        "error_ratio": diagnosis["error_ratio"],
        "exponent": diagnosis["exponent"],
        "effective_rank": diagnosis["structure"]["effective_rank"],
        "bias_share": float(np.mean(shares[: len(diagnosis["classes"]) - 1])),
        "sigma": metrics["sigma"],
        "accuracy": metrics["accuracy"],
        "sigma_over_noise": metrics["sigma"] / noise if noise > 0 else 1.0,
    }
    row = headline_row(comparison, method)
    base = comparison["base"]
    # Older comparisons have differences of σ as measured, and no σ without sampling noise.
    gains = gains_of(row, base.get("sigma_corrected", base["sigma"]))
    return Case(name, group, comparison["images"], predictors, gains, row["delta_accuracy"])


def headline_row(comparison: dict[str, Any], method: str) -> dict[str, Any]:
    """Find a method's row at the headline budget, or its only row, in a comparison as JSON."""
    budgets = (None, comparison["headline"])
    rows = [row for row in comparison["methods"] if row["name"] == method and row["budget"] in budgets]
    if not rows or rows[0]["sigma"] is None:
        known = dict.fromkeys(row["name"] for row in comparison["methods"] if row["sigma"] is not None)
        raise InputError(f"method: the comparison has no figures for {method!r}; give one of {', '.join(known)}")
    return dict(rows[0])


def gains_of(row: dict[str, Any], base: float) -> dict[str, Estimate]:
    """Read the gains from a row of a comparison as JSON.

    Args:
        row: of a method.
        base: σ of the unchanged model, without sampling noise as the differences are.
    """
    change = row.get("sigma_change")
    paired = row["paired_vs_class_bias"]
    # Older comparisons have no interval for the change of σ.
    fall = _fall(change) if change else Estimate(base - row["sigma"])
    gains = {"fall": fall}
    if base > 0:
        gains["relative_fall"] = Estimate(fall.value / base, None if fall.error is None else fall.error / base)
    if paired:
        gains["ahead_of_bias"] = _fall(paired)
    return gains


def _fall(found: dict[str, Any]) -> Estimate:
    """Turn a difference with its 95 % interval into a fall with its standard error."""
    low, high = found["interval"]
    return Estimate(-found["difference"], float((high - low) / (2 * norm.ppf(0.975))))


def load_cases(path: Path, method: str) -> tuple[Case, ...]:
    """Read the cases of an earlier study of the same method from its `predictors.json`."""
    content = read_json(path, "with")
    if content.get("method") != method or "cases" not in content:
        raise InputError(f"with: {path} is not a study of {method!r}; give a predictors.json of that method")
    cases = checked(content, f"with: {path}", PredictorsShape)["cases"]
    with blamed_on(f"with: {path}"):
        return _cases(cases)


def _cases(cases: list[dict[str, Any]]) -> tuple[Case, ...]:
    gains = [{name: built(Estimate, gain) for name, gain in case["gains"].items()} for case in cases]
    return tuple(replace(built(Case, case | {"gains": {}}), gains=own) for case, own in zip(cases, gains, strict=True))
