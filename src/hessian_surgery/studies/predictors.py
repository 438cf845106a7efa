"""Can the gain be foretold? What `diagnose` finds before an operation, held against what `compare` finds after it."""

from dataclasses import dataclass
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
from hessian_surgery.files import read_json
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.operation.config import OperationConfig, SurgeryConfig
from hessian_surgery.operation.observer import Observer
from hessian_surgery.paper.diagnosis import diagnose

# The method whose gain is to be foretold, unless another is asked for.
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
class Measured:
    """A figure, as a fraction, and its standard error over images where that is known."""

    value: float
    error: float | None = None


@dataclass(frozen=True)
class Case:
    """One model.

    Attributes:
        name: of the model.
        group: of the models that it is like: its data set.
        images: that the gain was measured on, in halves.
        predictors: known before an operation, by the names in `PREDICTORS`; accuracies and σ as fractions.
        gains: on held-out images at the headline budget, by the names in `GAINS`; above 0 is better. One that a
            comparison does not give is left out.
        delta_accuracy: what the gain came at, a fraction.
    """

    name: str
    group: str
    images: int
    predictors: dict[str, float]
    gains: dict[str, Measured]
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
        model: the trained classifier; it is left as it was.
        parts: its data; `diagnose` sees the calibration part, `compare` that and the held-out part.
        name: of the model.
        group: its data set.
        method: an entry of a comparison.
        splits: of the comparison.
        config: how spikes are sought.
        observer: told about progress.
    """
    config = config or SurgeryConfig()
    diagnosis = diagnose(model, training_data=parts.training, calibration_data=parts.calibration, config=config)
    fronts = compare(
        model,
        data=join_sets(parts.calibration, parts.heldout),
        training_data=parts.training,
        # Spikes are wanted besides, for their bias-R².
        protocol=Protocol(methods=tuple(dict.fromkeys((method, "spikes"))), splits=splits, seed=config.seed),
        config=config,
        observer=observer,
    )
    return make_case(name, group, diagnosis.as_dict(), fronts.as_dict(), method)


def make_case(name: str, group: str, diagnosis: dict[str, Any], comparison: dict[str, Any], method: str) -> Case:
    """A case from what `diagnose --json` and `compare --json` print."""
    metrics, shares = diagnosis["metrics"], comparison["bias_shares"].get("spikes")
    if not shares:
        raise InputError(f"comparison: that of {name} holds no spikes; add the method spikes to it")
    if list(diagnosis["classes"]) != list(comparison["classes"]):
        raise InputError(f"comparison: that of {name} has other classes than the diagnosis")
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
    gains = gains_of(row, comparison["base"]["sigma"])
    return Case(name, group, comparison["images"], predictors, gains, row["delta_accuracy"])


def headline_row(comparison: dict[str, Any], method: str) -> dict[str, Any]:
    """The row of a method at the headline budget, or its only one, of a comparison's plain values."""
    budgets = (None, comparison["headline"])
    rows = [row for row in comparison["methods"] if row["name"] == method and row["budget"] in budgets]
    if not rows or rows[0]["sigma"] is None:
        there = ", ".join(dict.fromkeys(row["name"] for row in comparison["methods"] if row["sigma"] is not None))
        raise InputError(f"method: the comparison has no figures of {method!r}; it has {there}")
    return dict(rows[0])


def gains_of(row: dict[str, Any], base: float) -> dict[str, Measured]:
    """The gains in a row of a comparison's plain values; `base` is σ of the model as it is."""
    change, paired = row.get("sigma_change"), row["paired_vs_class_bias"]
    # Comparisons made before they gave the change's interval give its value only.
    fall = _fall(change) if change else Measured(base - row["sigma"])
    found = {"fall": fall}
    if base > 0:
        found["relative_fall"] = Measured(fall.value / base, None if fall.error is None else fall.error / base)
    return found | ({"ahead_of_bias": _fall(paired)} if paired else {})


def _fall(found: dict[str, Any]) -> Measured:
    """A difference with its 95 % interval, as a fall with its standard error."""
    low, high = found["interval"]
    return Measured(-found["difference"], float((high - low) / (2 * norm.ppf(0.975))))


def load_cases(path: Path, method: str) -> tuple[Case, ...]:
    """The cases of a finished study of the same method (`predictors.json`)."""
    content = read_json(path, "with")
    if content.get("method") != method or "cases" not in content:
        raise InputError(f"with: {path} is no study of {method!r}; give a predictors.json of that method")
    return tuple(
        Case(**{**case, "gains": {name: Measured(**gain) for name, gain in case["gains"].items()}})
        for case in content["cases"]
    )
