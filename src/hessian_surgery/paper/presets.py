"""The settings of the paper's experiments."""

from typing import Any, Literal, TypeAlias, get_args

from hessian_surgery.curvature.search import SpikeSearch
from hessian_surgery.errors import require
from hessian_surgery.paper.amplitude import Control
from hessian_surgery.paper.config import LoopConfig

PaperDataset: TypeAlias = Literal["cifar10", "cifar100", "isic"]
PaperStart: TypeAlias = Literal["ce", "focal", "class-balanced"]


def paper_config(
    dataset: PaperDataset = "cifar10", start: PaperStart = "ce", control: Control = "adam", seed: int = 0
) -> LoopConfig:
    """The settings of one of the paper's experiments.

    Args:
        dataset: whose experiment. "cifar100" is section 8's: 3 phases, 15 spikes, 3 iterations.
        start: how the model was trained (ISIC only): cross-entropy, focal or class-balanced loss.
        control: Adam-style control with T=15 on CIFAR-10 (table 7), or γ-decay with T=10 (tables 4
            and 5).
        seed: fixes every random draw.

    Example:
        >>> hs.paper_config("cifar100").phases
        3
    """
    _check(dataset, start)
    shared: dict[str, Any] = {
        "control": control,
        "reference": "previous",
        "returned": "last",
        "sensitivity": "differences",
        "seed": seed,
    }
    if dataset == "cifar10":
        search = SpikeSearch(spikes=9, lanczos_steps=10, signs="all", hessian_samples=128)
        iterations = 15 if control == "adam" else 10
        return LoopConfig(search=search, iterations=iterations, amplitude=0.02, exponent=2, strong_above=0.85, **shared)
    if dataset == "cifar100":
        search = SpikeSearch(spikes=15, lanczos_steps=20, hessian_samples=128)
        return LoopConfig(search=search, iterations=3, phases=3, amplitude=0.029, exponent=1, **shared)
    return _isic(start, shared)


def _isic(start: PaperStart, shared: dict[str, Any]) -> LoopConfig:
    shared |= {"amplitude": 0.02, "exponent": 0.5, "bound": "box", "calibration_cap": 250}
    if start == "focal":
        search = SpikeSearch(lanczos_steps=10, hessian_samples=64, loss="focal")
        return LoopConfig(search=search, iterations=20, **shared)
    if start == "class-balanced":
        search = SpikeSearch(lanczos_steps=10, hessian_samples=256, hessian_sampling="stratified")
        return LoopConfig(search=search, iterations=5, patience=3, **shared)
    return LoopConfig(search=SpikeSearch(lanczos_steps=10, hessian_samples=256), iterations=10, **shared)


def _check(dataset: str, start: str) -> None:
    require(dataset in get_args(PaperDataset), "dataset", dataset, f"one of {', '.join(get_args(PaperDataset))}")
    require(start in get_args(PaperStart), "start", start, f"one of {', '.join(get_args(PaperStart))}")
    require(start == "ce" or dataset == "isic", "start", start, f"'ce' on {dataset}: only isic has others")
