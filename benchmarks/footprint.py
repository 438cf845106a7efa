"""Peak memory of nine pairs, by this library and by others, each in a process of its own.

    python -m benchmarks.footprint

A job's memory is the most that its process ever held, minus what the process held after loading the
network and the batch and computing one gradient.
"""

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import hessian_surgery as hs
from benchmarks.curvature import NETWORKS, RESULTS, SAMPLES, made_up
from benchmarks.peers import Batch, curvlinops, pyhessian

PAIRS = 9
TOLERANCE = 1e-2
# Products that a library may take.
LIMIT = 40
Job = Callable[[nn.Module, Batch], object]

JOBS: dict[str, Job] = {
    "hessian-surgery": lambda net, batch: hs.lanczos(hs.Hessian(net, batch), PAIRS, tolerance=TOLERANCE),
    "hessian-surgery, streamed in 8 parts": lambda net, batch: hs.lanczos(
        hs.Hessian(net, batch, micro_batch=SAMPLES // 8), PAIRS, tolerance=TOLERANCE
    ),
    "curvlinops + ARPACK": lambda net, batch: curvlinops(net, batch).pairs(PAIRS, TOLERANCE, LIMIT),
    "PyHessian": lambda net, batch: pyhessian(net, batch).pairs(PAIRS, TOLERANCE, PAIRS),
}


def held() -> int:
    """The most bytes that this process has held."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(network: str, job: str) -> int:
    """Measure the bytes that a job adds; call it once in a process."""
    torch.set_num_threads(2)
    net, batch = made_up(network)
    torch.autograd.grad(F.cross_entropy(net(batch[0]), batch[1]), list(net.parameters()))
    before = held()
    JOBS[job](net, batch)
    return held() - before


def main() -> None:
    """Measure every job on every network, each in a process of its own; print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=2, metavar=("NETWORK", "JOB"), help="measure one job in this process")
    given = parser.parse_args()
    if given.one:
        print(measure(*given.one))
        return
    found: dict[str, dict[str, int]] = {network: {} for network in NETWORKS}
    for network, row in found.items():
        for job in JOBS:
            command = [sys.executable, "-m", "benchmarks.footprint", "--one", network, job]
            row[job] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
            print(f"{network}  {job:<38} {row[job] / 1e9:6.2f} GB", flush=True)
    path = Path(RESULTS) / "footprint.json"
    path.write_text(json.dumps({"pairs": PAIRS, "samples": SAMPLES, "bytes": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
