"""The whole default operation against the paper's preset, after loading, in one process: seconds, σ and accuracy.

python -m benchmarks.operation --checkpoint resnet50-cifar10.safetensors --data parquet:cifar10 --device cuda
"""

import argparse
import copy
import json
import time
from pathlib import Path
from typing import Any

import torch

import hessian_surgery as hs
from hessian_surgery.cli.inputs import InputOptions, Opened, open_inputs
from hessian_surgery.data.splits import cap_per_class

RESULTS = Path(__file__).parent / "results" / "operation.json"


# Training images of a class that are read before the clock starts; an operation draws from them.
TRAINING = 1000


def operate(opened: Opened, config: hs.SurgeryConfig, cap: int | None) -> dict[str, Any]:
    """One operation on a copy of the model; `cap` images of a class at most in each part that is measured."""
    parts, device = opened.parts, opened.classifier.device
    labelled = [part if cap is None else cap_per_class(part, cap) for part in (parts.calibration, parts.heldout)]
    sensitivity, heldout = (part.resident(device) for part in labelled)
    training = cap_per_class(parts.training, TRAINING).resident()
    model = copy.deepcopy(opened.model)
    started = time.perf_counter()
    outcome = hs.operate(
        model, training_data=training, calibration_data=sensitivity, heldout_data=heldout, config=config
    )
    if opened.classifier.device.type == "cuda":
        torch.cuda.synchronize()
    before, after = outcome.findings.heldout.metrics()
    stages: dict[str, float] = {}
    for record in outcome.iterations:
        for stage, seconds in record.seconds.items():
            stages[stage] = stages.get(stage, 0.0) + seconds
    return {
        "seconds": time.perf_counter() - started,
        "stages": stages,
        "rounds": len(outcome.iterations),
        "sigma": (before.sigma, after.sigma),
        "accuracy": (before.accuracy, after.accuracy),
        "worst": (before.worst, after.worst),
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--presets", default="default,paper", help="which to run")
    parser.add_argument("--cap", type=int, help="images of a class, at most, in each measured part")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    options = InputOptions("resnet50", given.checkpoint, given.data, *[None] * 3, given.device, *[None] * 3)
    opened = open_inputs(options, seed=0)
    rows = {}
    for name in given.presets.split(","):
        config = {"default": hs.SurgeryConfig, "paper": hs.SurgeryConfig.paper}[name]()
        rows[name] = operate(opened, config, given.cap)
        print(name, json.dumps(rows[name]), flush=True)
    if len(rows) == 2:
        print(f"paper / default: {rows['paper']['seconds'] / rows['default']['seconds']:.2f} times the seconds")
    given.out.parent.mkdir(exist_ok=True)
    given.out.write_text(json.dumps({"cap": given.cap, "device": given.device} | rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
