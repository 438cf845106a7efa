"""What `--dry-run` announces, beside what an operation takes: peak memory and seconds.

    python -m benchmarks.announced                 five networks, on the CPU
    python -m benchmarks.announced --device cuda   the same on a GPU

Each network is measured in a process of its own. Memory is what the process holds at most, on the
host and on the GPU, minus what it held after the trial of `--dry-run`. Images are made up, but for
the digits.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hessian_surgery as hs
from benchmarks.resnet20 import network
from hessian_surgery.cli.inputs import digits_net
from hessian_surgery.curvature.memory import Watch
from hessian_surgery.data.sources import Parts
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.freed_memory import give_back
from hessian_surgery.model.resnet import resnet50
from hessian_surgery.operation.cost import estimate_cost, try_operation

RESULTS = Path(__file__).parent / "results"
IMAGES = 1000
# The measured peak must be this share of the announced one.
LEAST, MOST = 0.7, 1.0


def wide(classes: int) -> nn.Module:
    """A perceptron of five million weights."""
    layers = [nn.Linear(3072, 1200), nn.ReLU(), nn.Linear(1200, 1000), nn.ReLU(), nn.Linear(1000, classes)]
    return nn.Sequential(nn.Flatten(), *layers)


# Network, classes, images of each part; the digits have a net and images of their own.
CASES: dict[str, tuple[Any, int, int]] = {
    "digits": (None, 10, 0),
    "wide-10": (wide, 10, IMAGES),
    "resnet20-10": (network, 10, IMAGES),
    "resnet20-200": (network, 200, IMAGES),
    "resnet50-10": (resnet50, 10, 300),
}


def made_up(count: int, classes: int, seed: int) -> hs.LabelledSet:
    """Noisy images of a pattern for each class."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    patterns = torch.randn(classes, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    images = patterns[labels] / 2 + torch.randn(count, 3, 32, 32, generator=draw)
    return hs.as_labelled((images, labels), classes=[str(i) for i in range(classes)])


def open_case(name: str, device: torch.device) -> tuple[nn.Module, Parts]:
    """A network, trained for a moment, and its images."""
    torch.manual_seed(0)
    build, classes, images = CASES[name]
    if build is None:
        net, parts = digits_net(0)
        return net.to(device), parts
    net = build(classes).to(device)
    training, calibration, heldout = (made_up(images, classes, seed) for seed in (1, 2, 3))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for inputs, labels in training.batches(100, device):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs), labels).backward()
        optimizer.step()
    optimizer.zero_grad()
    return net.eval(), Parts(training, calibration, heldout)


def measure(name: str, device: torch.device) -> dict[str, Any]:
    """Announce and measure one case; call it once in a process."""
    net, parts = open_case(name, device)
    give_back()
    config = hs.SurgeryConfig()
    classifier = Classifier(net)
    trial = try_operation(classifier, parts.calibration, config)
    cost = estimate_cost(classifier, parts.training, parts.calibration, config, None, parts.heldout, trial)
    give_back()
    watch = Watch(device)
    held = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    outcome = hs.operate(
        net,
        training_data=parts.training,
        calibration_data=parts.calibration,
        heldout_data=parts.heldout,
        config=config,
        front=True,
    )
    measured = {"bytes": watch.peak(), "seconds": outcome.seconds, "stages": outcome.iterations[0].seconds}
    if device.type == "cuda":
        measured["device_bytes"] = torch.cuda.max_memory_allocated(device) - held
    measured["batch_size"] = outcome.choices["batch_size"]
    return {"announced": cost.as_dict(), "measured": measured}


def main() -> None:
    """Measure every case in a process of its own; print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cases", default=",".join(CASES), help="which to measure")
    parser.add_argument("--one", choices=CASES, help="measure one case in this process")
    parser.add_argument("--out", type=Path, help="by default results/announced.json, or announced-gpu.json")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, torch.device(given.device))))
        return
    rows = {}
    print(f"{'case':14} {'announced':>10} {'measured':>10} {'ratio':>6}   {'seconds':>8} {'measured':>8} {'ratio':>6}")
    for name in given.cases.split(","):
        command = [sys.executable, "-m", "benchmarks.announced", "--one", name, "--device", given.device]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found = json.loads(printed.splitlines()[-1])
        said, took = found["announced"], found["measured"]
        share = took["bytes"] / said["total_bytes"]
        times = said["seconds"] / took["seconds"]
        print(
            f"{name:14} {said['total_bytes'] / 1e6:7.1f} MB {took['bytes'] / 1e6:7.1f} MB {share:6.2f}   "
            f"{said['seconds']:8.1f} {took['seconds']:8.1f} {times:6.2f}" + " outside" * (not LEAST <= share <= MOST),
            flush=True,
        )
        rows[name] = found | {"bytes_ratio": share, "seconds_ratio": times}
    path = given.out or RESULTS / ("announced.json" if given.device == "cpu" else "announced-gpu.json")
    path.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
