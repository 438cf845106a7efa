"""Do ranks find what one process finds? On one GPU, through NCCL and gloo, or on a CPU.

    python -m benchmarks.ranks_agree --device cuda

Three ways to the same findings, all in float64: this process alone; one rank, which exchanges
through NCCL on a GPU; two ranks that share the GPU, and exchange through gloo. The network is a
small ResNet, trained a little on scikit-learn's digits, which need no download.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import hessian_surgery as hs
from benchmarks.ranks import counted
from hessian_surgery.data.sources import open_data
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.model.resnet import BasicBlock

RESULTS = Path(__file__).parent / "results"
# Ranks that `torchrun` starts; None is a process without it.
WAYS = (None, 1, 2)
# Images of the Hessian batch, eigenvalues, and their relative residual.
BATCH, SPIKES, TOLERANCE = 64, 4, 1e-8
EPOCHS, TRAINING_BATCH = 20, 62


def small_resnet(classes: int) -> nn.Module:
    """Two residual blocks with BatchNorm, and a linear head; about 5,000 weights."""
    pool = (nn.AdaptiveAvgPool2d(2), nn.Flatten())
    blocks = (nn.Conv2d(1, 8, 3, padding=1), BasicBlock(8, 8, 1), BasicBlock(8, 16, 2))
    return nn.Sequential(*blocks, *pool, nn.Linear(64, classes))


def in_float64(data: hs.LabelledSet) -> hs.LabelledSet:
    """The same images in double precision."""
    inputs = data.inputs()
    assert isinstance(inputs, Tensor)
    return hs.as_labelled((inputs.double(), data.labels), classes=data.classes)


def open_parts() -> dict[str, hs.LabelledSet]:
    """Training, calibration and held-out digits in float64."""
    return {name: in_float64(part) for name, part in vars(open_data("digits", seed=0)).items()}


def train(path: Path) -> None:
    """Train the network a little, and write its weights."""
    torch.manual_seed(0)
    net, data = small_resnet(10).double(), open_parts()["training"]
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(EPOCHS):
        for chosen in torch.arange(len(data)).split(TRAINING_BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(data.fetch(chosen)), data.labels[chosen]).backward()
            optimizer.step()
    torch.save(net.state_dict(), path)


def count_right(predicted: Tensor, data: hs.LabelledSet) -> list[int]:
    """How many images of each class are answered right."""
    right = data.labels[predicted.cpu() == data.labels]
    return torch.bincount(right, minlength=len(data.classes)).tolist()


def find_spectrum(net: nn.Module, training: hs.LabelledSet) -> dict[str, Any]:
    """Leading eigenvalues, the basis on this rank, and large exchanges by kind."""
    hessian = hs.Hessian(net, hs.hessian_batch(training, BATCH))
    space = hs.parameter_space(net)
    vector = torch.ones(space.dimension, dtype=space.dtype, device=space.device)
    with counted() as of_product:
        hessian @ vector
    with counted() as of_search:
        spectrum = hs.lanczos(hessian, SPIKES, tolerance=TOLERANCE)
    return {
        "eigenvalues": spectrum.eigenvalues.tolist(),
        "basis bytes": spectrum.basis_bytes,
        "collectives of a product": large(of_product, 1),
        "collectives of a Lanczos step": large(of_search, spectrum.steps),
    }


def large(found: dict[str, int], times: int) -> dict[str, float]:
    """Large exchanges of each kind, each time."""
    calls = {name.removesuffix(" calls"): number for name, number in found.items() if name.endswith(" calls")}
    return {kind: number / times for kind, number in calls.items() if kind != "small"}


def decide(net: nn.Module, parts: dict[str, hs.LabelledSet]) -> dict[str, Any]:
    """What the default operation decides; it moves the network."""
    outcome = hs.operate(net, **{f"{name}_data": part for name, part in parts.items()})
    return {
        "accepted": [record.accepted for record in outcome.iterations],
        "class accuracies": [record.per_class for record in outcome.iterations],
        "counts": count_right(outcome.findings.heldout.after.predicted, parts["heldout"]),
    }


def measure(device: torch.device, weights: Path) -> dict[str, Any]:
    """What this rank finds."""
    net, parts = small_resnet(10).double(), open_parts()
    net.load_state_dict(torch.load(weights))
    net.to(device).eval()
    predicted = compute_logits(hs.Classifier(net), parts["heldout"]).argmax(dim=1)
    found = {"counts": count_right(predicted, parts["heldout"])} | find_spectrum(net, parts["training"])
    return found | {"decisions": decide(net, parts)}


def run_one(device: torch.device, weights: Path) -> None:
    """Measure as a rank, or alone; the first rank prints what each has found."""
    with hs.joined_ranks() as ranks:
        own = measure(device, weights)
        every: list[Any] = [own]
        backend = None
        if ranks.joined:
            every = [None] * ranks.size
            dist.all_gather_object(every, own)
            backend = dict(pair.split(":") for pair in dist.get_backend_config().split(","))[device.type]
    if ranks.writes:
        print(json.dumps({"backend": backend, "found": every}))


def run_apart(ranks: int | None, device: str, weights: Path) -> dict[str, Any]:
    """Measure with so many ranks, on one GPU at most."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0] if device == "cuda" else ""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks else []
    words = ["-m", "benchmarks.ranks_agree", "--device", device, "--weights", str(weights)]
    done = subprocess.run(
        [sys.executable, *launcher, *words],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": shown, "OMP_NUM_THREADS": "1"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return {"ranks": ranks} | json.loads(done.stdout.splitlines()[-1])


def compare(alone: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """How every rank's findings differ from those of a process alone."""
    one = alone["found"][0]
    pairs = [pair for found in row["found"] for pair in zip(found["eigenvalues"], one["eigenvalues"], strict=True)]
    return {
        "ranks": row["ranks"],
        "backend": row["backend"],
        "eigenvalues differ by": max(abs(other - value) / abs(value) for other, value in pairs),
        "counts equal": all(found["counts"] == one["counts"] for found in row["found"]),
        "decisions equal": all(found["decisions"] == one["decisions"] for found in row["found"]),
        "basis bytes over alone": [found["basis bytes"] / one["basis bytes"] for found in row["found"]],
        "collectives of a product": row["found"][0]["collectives of a product"],
        "collectives of a Lanczos step": row["found"][0]["collectives of a Lanczos step"],
    }


def main() -> None:
    """Measure in each way, compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--weights", type=Path, help="measure in this process, with these weights")
    parser.add_argument("--out", type=Path, help="the JSON; default: ranks-DEVICE.json among the results")
    given = parser.parse_args()
    if given.weights:
        run_one(torch.device(given.device), given.weights)
        return
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "weights.pt"
        train(weights)
        rows = [run_apart(ranks, given.device, weights) for ranks in WAYS]
    agreement = [compare(rows[0], row) for row in rows[1:]]
    for one in agreement:
        print(json.dumps(one))
    setting = {"device": given.device, "torch": torch.__version__, "batch": BATCH, "tolerance": TOLERANCE}
    if given.device == "cuda":
        setting["gpu"] = torch.cuda.get_device_name()
    out = given.out or RESULTS / f"ranks-{given.device}.json"
    out.write_text(json.dumps(setting | {"agreement": agreement, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
