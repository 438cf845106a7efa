"""Runs of the paper's loop, each made once and shared by all items that need it."""

import hashlib
import json
from dataclasses import asdict, replace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from hessian_surgery.evidence.paired_tests import PairedTests
from hessian_surgery.evidence.resampled_pairs import pair_counts
from hessian_surgery.operation.operate import operate
from hessian_surgery.operation.outcome import Outcome
from hessian_surgery.paper.config import LoopConfig
from hessian_surgery.reproduce.workbench import Workbench
from hessian_surgery.weights.tensorfile import save_tensors

# What a quick run takes of what a loop takes more of.
QUICK_ITERATIONS = 2
QUICK_SAMPLES = 32
QUICK_IMAGES = 12  # of each class, for calibration


def loop_run(bench: Workbench, split: int, config: LoopConfig, training: str = "") -> dict[str, Any]:
    """Run Algorithm 2 on one split, or read what it gave.

    Args:
        bench: the data set and its network.
        split: the seed that halves the test images.
        config: the loop's settings; the seed is replaced by `split`.
        training: a fine-tune that the network had before, or "".

    Returns:
        `classes`, `before` and `after` on held-out images, `calibration_before` and
        `calibration_after`, `changes` of σ and accuracies with intervals, `pairs` (C rows of 4, as
        `pair_counts` has them), `iterations`, `seconds`.
    """
    config = _settled(bench, split, config)
    name = run_name(split, config, training)
    return bench.once(name, lambda: _as_dict(_run(bench, split, config, training, name)))


def loop_weights(bench: Workbench, split: int, config: LoopConfig, training: str = "") -> dict[str, Tensor]:
    """The weights that the loop ends with."""
    loop_run(bench, split, config, training)
    return load_file(bench.folder / f"{run_name(split, _settled(bench, split, config), training)}.safetensors")


def run_name(split: int, config: LoopConfig, training: str) -> str:
    """A name that no other settings share."""
    settings = json.dumps(asdict(config), sort_keys=True, default=str)
    return f"loop-{training or 'ce'}-{hashlib.sha256(settings.encode()).hexdigest()[:10]}-split-{split}"


def _settled(bench: Workbench, split: int, config: LoopConfig) -> LoopConfig:
    """The settings with the split's seed; smaller in a quick run."""
    config = replace(config, seed=split)
    if not bench.quick:
        return config
    search = replace(config.search, hessian_samples=min(QUICK_SAMPLES, config.search.hessian_samples))
    iterations = min(QUICK_ITERATIONS, config.iterations)
    return replace(config, search=search, iterations=iterations, calibration_cap=QUICK_IMAGES)


def _run(bench: Workbench, split: int, config: LoopConfig, training: str, name: str) -> Outcome:
    parts = bench.parts(split)
    outcome = operate(
        bench.model(training),
        training_data=parts.training,
        calibration_data=parts.calibration,
        heldout_data=parts.heldout,
        config=config,
        observer=bench.observer,
    )
    save_tensors(bench.folder / f"{name}.safetensors", outcome.weights)
    return outcome


def _as_dict(outcome: Outcome) -> dict[str, Any]:
    before, after = outcome.findings.heldout.metrics()
    calibration_before, calibration_after = outcome.findings.calibration.metrics()
    return {
        "classes": list(outcome.findings.heldout.classes),
        "before": before.as_dict(),
        "after": after.as_dict(),
        "calibration_before": calibration_before.as_dict(),
        "calibration_after": calibration_after.as_dict(),
        "changes": changes_of(outcome.findings.tests),
        "pairs": pair_counts(outcome.findings.heldout).astype(int).tolist(),
        "iterations": [record.as_dict() for record in outcome.iterations],
        "ended": outcome.ended,
        "seconds": outcome.seconds,
    }


def changes_of(tests: PairedTests) -> dict[str, Any]:
    """Changes on the same images with intervals, as fractions."""
    return {name: asdict(getattr(tests, name)) for name in ("sigma", "accuracy", "balanced_accuracy", "worst")}


def free_memory() -> None:
    """Give back what the last network took on a GPU."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
