"""How long forward passes over many small images take: PyTorch's own, ours, and ours recorded.

    python -m benchmarks.passes --device cuda

A ResNet-50 with random weights and 5,000 made-up images of 32×32 pixels, whose last feature maps
have one position. "plain" is the module in evaluation mode, in the same batches and memory format.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

import hessian_surgery as hs
from hessian_surgery.cuda_graphs import batchwise
from hessian_surgery.model.classifier import as_classifier, deterministic_kernels
from hessian_surgery.model.evaluation import BATCH_SIZE, batch_logits, compute_logits
from hessian_surgery.model.resnet import resnet50

RESULTS = Path(__file__).parent / "results"
IMAGES = 5000
ROUNDS = 7


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Median seconds of some work, after one round that is not counted."""
    found = []
    for _ in range(ROUNDS + 1):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - started)
    return statistics.median(found[1:])


def measure(device: torch.device, images: int) -> dict[str, float]:
    """Seconds of a pass, by the way it is made, and the largest difference of logits."""
    torch.manual_seed(0)
    classifier = as_classifier(resnet50(10).to(device).eval())
    data = hs.as_labelled((torch.randn(images, 3, 32, 32), torch.arange(images) % 10)).resident(device)

    def plain() -> torch.Tensor:
        with torch.no_grad(), deterministic_kernels():
            return torch.cat([classifier.logits(x).float() for x, _ in data.batches(BATCH_SIZE, device)]).cpu()

    recorded = batchwise(partial(batch_logits, classifier), classifier.module, BATCH_SIZE)
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "plain": plain,
        "ours": lambda: compute_logits(classifier, data),
        "recorded": lambda: compute_logits(classifier, data, forward=recorded),
    }
    found = {name: seconds(way, device) for name, way in ways.items()}
    difference = max(float((way() - plain()).abs().max()) for way in ways.values())
    return found | {"difference of logits": difference}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=IMAGES)
    given = parser.parse_args()
    device = torch.device(given.device)
    found = measure(device, given.images)
    for name, value in found.items():
        print(f"{name}: {value:.4g}")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    content = {"device": name, "torch": torch.__version__, "images": given.images} | found
    (RESULTS / f"passes-{device.type}.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
