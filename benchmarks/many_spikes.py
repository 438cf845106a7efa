"""All C − 1 spikes of a network with many classes, with the basis stored in three ways.

The benchmark also measures how well the three results agree.

python -m benchmarks.many_spikes --checkpoint resnet50-cifar100.safetensors \\
    --data parquet:cifar100 --device cuda
"""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hessian_surgery as hs
from benchmarks.trained_network import network_parser, open_network
from hessian_surgery.curvature.basis import length, project
from hessian_surgery.curvature.memory_plan import few_rows, full_rows

TOLERANCE = 1e-2
RESULTS = Path(__file__).parent / "results" / "many_spikes.json"


def storages(k: int) -> dict[str, hs.Storage]:
    """The three ways to store the basis of k pairs.

    Float32 with room to spare, bfloat16 with room for few vectors, which means restarts, and
    bfloat16 on disk, with room to spare.
    """
    return {
        "float32": hs.Storage(full_rows(k)),
        "bfloat16, restarted": hs.Storage(few_rows(k), "device", "bfloat16"),
        "bfloat16, on disk": hs.Storage(full_rows(k), "disk", "bfloat16"),
    }


def agreement(reference: hs.Spectrum, other: hs.Spectrum) -> dict[str, float]:
    """Compare eigenvalues, and the two spans by the cosines of their principal angles."""
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
    """The largest ‖Hq − λq‖/λ of every eleventh pair, counted from the last, by a new product."""
    found = []
    for i in range(len(spectrum) - 1, -1, -11):
        value = spectrum.eigenvalues[i]
        vector = spectrum.vector(i)
        found.append(length(hessian @ vector - value * vector) / float(value))
    return max(found)


def show(done: int, limit: int) -> None:
    """Print progress now and then."""
    if done % 20 == 0:
        print(f"{done} of at most {limit} products", file=sys.stderr, flush=True)


def main() -> None:
    """Measure, print and write."""
    parser = network_parser(__doc__, RESULTS)
    parser.add_argument("--micro-batch", type=int, help="stream the Hessian batch in parts of this size")
    parser.add_argument("--spikes", type=int, help="by default one fewer than the classes")
    parser.add_argument("--samples", type=int, default=512, help="images in the Hessian batch")
    parser.add_argument("--only", nargs="*", help="some of the ways to store the basis, by name")
    given = parser.parse_args()
    opened = open_network(given)
    batch = hs.hessian_batch(opened.parts.training, given.samples).resident(opened.classifier.device)
    hessian = hs.Hessian(opened.model, batch, micro_batch=given.micro_batch)
    k = given.spikes or len(batch.classes) - 1
    reference = None
    rows: dict[str, Any] = {}
    chosen = {name: storage for name, storage in storages(k).items() if given.only is None or name in given.only}
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
