"""All C − 1 spikes of a network with many classes, with the basis kept in three ways, and how well the results agree.

python -m benchmarks.many_spikes --checkpoint resnet50-cifar100.safetensors --data parquet:cifar100 --device cuda
"""

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hessian_surgery as hs
from hessian_surgery.cli.inputs import InputOptions, open_inputs
from hessian_surgery.curvature.basis import length, project
from hessian_surgery.curvature.memory_plan import few_rows, full_rows

TOLERANCE = 1e-2
RESULTS = Path(__file__).parent / "results" / "many_spikes.json"


def storages(k: int) -> dict[str, hs.Storage]:
    """Float32 with room to spare; bfloat16 with a quarter more vectors than pairs; bfloat16 on disk, which has room."""
    return {
        "float32": hs.Storage(full_rows(k)),
        "bfloat16, restarted": hs.Storage(few_rows(k), "device", "bfloat16"),
        "bfloat16, on disk": hs.Storage(full_rows(k), "disk", "bfloat16"),
    }


def agreement(reference: hs.Spectrum, other: hs.Spectrum) -> dict[str, float]:
    """Largest relative difference of an eigenvalue; mean and least squared cosine between the two spans."""
    count = min(len(reference), len(other))
    difference = np.abs(other.eigenvalues[:count] / reference.eigenvalues[:count] - 1).max()
    overlap = torch.stack([project(reference.vectors, other.vector(i)) for i in range(count)])
    cosines = torch.linalg.svdvals(overlap).clamp(max=1)
    return {
        "eigenvalue_difference": float(difference),
        "mean_squared_cosine": float(cosines.square().mean()),
        "least_cosine": float(cosines.min()),
    }


def true_residual(hessian: hs.Hessian, spectrum: hs.Spectrum) -> float:
    """The largest ‖Hq − λq‖/λ of every eleventh pair from the last on, by one more product each."""
    found = []
    for i in range(len(spectrum) - 1, -1, -11):
        value, vector = spectrum.eigenvalues[i], spectrum.vector(i)
        found.append(length(hessian @ vector - value * vector) / float(value))
    return max(found)


def show(done: int, limit: int) -> None:
    """A sign of life now and then."""
    if done % 20 == 0:
        print(f"{done} of at most {limit} products", file=sys.stderr, flush=True)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--micro-batch", type=int)
    parser.add_argument("--spikes", type=int)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--only", nargs="*", help="some of the ways to keep the basis")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    options = InputOptions("resnet50", given.checkpoint, given.data, *[None] * 3, given.device, *[None] * 3)
    opened = open_inputs(options, seed=0)
    batch = hs.hessian_batch(opened.parts.training, given.samples).resident(opened.classifier.device)
    hessian = hs.Hessian(opened.model, batch, micro_batch=given.micro_batch)
    k = given.spikes or len(batch.classes) - 1
    reference, rows = None, dict[str, Any]()
    chosen = {name: kept for name, kept in storages(k).items() if given.only is None or name in given.only}
    for name, storage in chosen.items():
        started = time.perf_counter()
        spectrum = hs.lanczos(hessian, k, tolerance=TOLERANCE, storage=storage, progress=show)
        seconds = time.perf_counter() - started
        reference = reference or spectrum
        rows[name] = asdict(storage) | {
            "seconds": seconds,
            "products": spectrum.steps,
            "converged": int(spectrum.converged.sum()),
            "residual": float(spectrum.residuals.max()),
            "true_residual": true_residual(hessian, spectrum),
            "basis_bytes": spectrum.basis_bytes,
            "peak_bytes": spectrum.peak_bytes,
            "eigenvalues": spectrum.eigenvalues.tolist(),
            "against_float32": agreement(reference, spectrum),
        }
        print(name, {key: value for key, value in rows[name].items() if key != "eigenvalues"}, flush=True)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        setting = {"spikes": k, "samples": given.samples, "tolerance": TOLERANCE, "device": str(given.device)}
        given.out.write_text(json.dumps(setting | {"torch": torch.__version__, "runs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
