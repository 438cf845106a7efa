"""The default operation beside the paper's loop: seconds after loading, σ and accuracy.

python -m benchmarks.operation --checkpoint resnet50-cifar10.safetensors \\
    --data parquet:cifar10 --device cuda
"""

import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hessian_surgery as hs
from benchmarks.trained_network import network_parser, open_network
from hessian_surgery.cli.inputs import OpenedModel

RESULTS = Path(__file__).parent / "results" / "operation.json"
# Training images of a class that are read before the clock starts; an operation draws from them.
TRAINING = 1000
PRESETS: dict[str, Callable[[], hs.OperationConfig]] = {
    "default": hs.SurgeryConfig,
    "class-gradients": lambda: hs.SurgeryConfig(directions="class-gradients"),
    "paper": hs.paper_config,
}


def gpu_bytes(device: torch.device, peak: bool = False) -> int:
    """Bytes that tensors hold on the GPU, now or at most since the last call without `peak`."""
    if device.type != "cuda":
        return 0
    if peak:
        return torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def pass_bytes(model: nn.Module, data: hs.LabelledSet, batch_size: int) -> int:
    """Bytes that a gradient pass over one batch takes on the GPU: activations and gradients."""
    classifier = hs.Classifier(model.requires_grad_())
    inputs, labels = next(data.batches(batch_size, classifier.device))
    held = gpu_bytes(classifier.device)
    nn.functional.cross_entropy(classifier.logits(inputs), labels).backward()
    model.zero_grad(set_to_none=True)
    return gpu_bytes(classifier.device, peak=True) - held


def operate(opened: OpenedModel, config: hs.OperationConfig, cap: int | None) -> dict[str, Any]:
    """Operate on a copy of the model.

    Args:
        opened: the model and its data.
        config: of the operation.
        cap: the most images of a class in the calibration data and in the held-out data.
    """
    parts = opened.parts
    device = opened.classifier.device
    measured = [part if cap is None else hs.cap_per_class(part, cap) for part in (parts.calibration, parts.heldout)]
    calibration, heldout = (part.resident(device) for part in measured)
    training = hs.cap_per_class(parts.training, TRAINING).resident()
    model = copy.deepcopy(opened.model)
    held = gpu_bytes(device)
    started = time.perf_counter()
    outcome = hs.operate(
        model, training_data=training, calibration_data=calibration, heldout_data=heldout, config=config
    )
    if device.type == "cuda":
        torch.cuda.synchronize()
    taken = time.perf_counter() - started
    beyond = gpu_bytes(device, peak=True) - held - pass_bytes(model, calibration, outcome.choices["batch_size"])
    before, after = outcome.findings.heldout.metrics()
    stages: dict[str, float] = {}
    for record in outcome.iterations:
        for stage, seconds in record.seconds.items():
            stages[stage] = stages.get(stage, 0.0) + seconds
    return {
        "seconds": taken,
        "gpu_bytes_beyond_model_and_activations": beyond if device.type == "cuda" else None,
        "stages": stages,
        "rounds": len(outcome.iterations),
        "sigma": (before.sigma, after.sigma),
        "accuracy": (before.accuracy, after.accuracy),
        "worst": (before.worst, after.worst),
    }


def main() -> None:
    """Measure, print and write."""
    parser = network_parser(__doc__, RESULTS)
    parser.add_argument("--presets", default="default,paper", help="which to run")
    parser.add_argument("--cap", type=int, help="the most images of a class in each measured part")
    given = parser.parse_args()
    opened = open_network(given)
    rows = {}
    for name in given.presets.split(","):
        rows[name] = operate(opened, PRESETS[name](), given.cap)
        print(name, json.dumps(rows[name]), flush=True)
    if {"default", "paper"} <= rows.keys():
        print(f"paper / default: {rows['paper']['seconds'] / rows['default']['seconds']:.2f} times the seconds")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({"cap": given.cap, "device": given.device} | rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
