"""How the work and the exchange of an operation and of Lanczos are shared among ranks.

    python -m benchmarks.ranks

Ranks of one machine's CPU, one thread each. Seconds are CPU time, so that neither other work on the
machine nor waiting for other ranks counts; of all ranks the busiest counts. A stage that takes
a + b / R seconds on R ranks is fitted to all numbers of ranks but the last, and checked on that.
"""

import argparse
import copy
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import hessian_surgery as hs
from benchmarks.scaling_case import Point, make_case, sizes

RESULTS = Path(__file__).parent / "results" / "ranks.json"
# The last number of ranks is left out of the fits.
RANKS = (1, 2, 3, 4)
POINT = Point(100, 5000, 24)
# Images of the Hessian batch, spikes, and Lanczos steps.
BATCH, SPIKES, STEPS = 240, 8, 40
# The collectives that are counted: torch has two names for some.
KINDS = {
    "all_reduce": "all_reduce",
    "all_gather_single": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
}
# Smaller exchanges are counts and coefficients; they cost latency only.
LARGE = 10_000


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Bytes of the whole tensors that this block exchanges, and how many exchanges, by kind."""
    found: dict[str, int] = {}
    saved = {name: getattr(dist, name) for name in KINDS if hasattr(dist, name)}

    def noting(name: str) -> Any:
        def call(*tensors: torch.Tensor, **options: Any) -> Any:
            size = max((t.nbytes for t in tensors if isinstance(t, torch.Tensor)), default=0)
            kind = KINDS[name] if size >= LARGE else "small"
            found[kind] = found.get(kind, 0) + size
            found[f"{kind} calls"] = found.get(f"{kind} calls", 0) + 1
            return saved[name](*tensors, **options)

        return call

    try:
        for name in saved:
            setattr(dist, name, noting(name))
        yield found
    finally:
        for name, function in saved.items():
            setattr(dist, name, function)


def measure() -> dict[str, Any]:
    """What this rank takes for an operation and for Lanczos."""
    torch.set_num_threads(1)
    net, sets = make_case(POINT)
    warm_net, warm_sets = make_case(Point(3, 60, 2))
    hs.operate(warm_net, **{f"{name}_data": part for name, part in warm_sets.items()})
    time.perf_counter = time.process_time  # the operation times its stages by it
    with counted() as operated:
        outcome = hs.operate(copy.deepcopy(net), **{f"{name}_data": part for name, part in sets.items()})
    hessian = hs.Hessian(net, hs.hessian_batch(sets["training"], BATCH))
    started = time.process_time()
    with counted() as searched:
        spectrum = hs.lanczos(hessian, SPIKES, steps=STEPS)
    stages = {name: outcome.iterations[0].seconds[name] for name in ("directions", "plan", "measure")}
    seconds = stages | {"spikes": time.process_time() - started}
    return {
        "seconds": seconds,
        "operate": operated,
        "lanczos": searched,
        "basis bytes": spectrum.basis_bytes,
        "eigenvalues": spectrum.eigenvalues.tolist(),
    }


def run_one() -> None:
    """Measure on every rank; the first prints the busiest rank's seconds, and its own bytes."""
    with hs.joined_ranks() as ranks:
        own = measure()
        every: list[Any] = [None] * ranks.size
        dist.all_gather_object(every, own)
    stages = own["seconds"]
    if ranks.writes:
        busiest = {stage: max(one["seconds"][stage] for one in every) for stage in stages}
        print(json.dumps({"ranks": ranks.size} | own | {"seconds": busiest}))


def run_apart(ranks: int) -> dict[str, Any]:
    """Measure with so many ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    done = subprocess.run([*command, "-m", "benchmarks.ranks", "--one"], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def fit(rows: list[dict[str, Any]], stage: str) -> tuple[float, float]:
    """a and b of a + b / R: what every rank does, and what is shared."""
    shares = np.array([[1.0, 1 / row["ranks"]] for row in rows])
    found = np.linalg.lstsq(shares, np.array([row["seconds"][stage] for row in rows]), rcond=None)[0]
    return float(found[0]), float(found[1])


def conclude(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The fits, and how well they predict the last row."""
    last = rows[-1]
    found = {}
    for stage, seen in last["seconds"].items():
        fixed, shared = fit(rows[:-1], stage)
        predicted = fixed + shared / last["ranks"]
        found[stage] = {"fixed": fixed, "shared": shared, "predicted": predicted, "error": predicted / seen - 1}
    return found


def main() -> None:
    """Measure with each number of ranks, fit, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", action="store_true", help="measure in this process, as one of the ranks")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.one:
        run_one()
        return
    rows = []
    for ranks in RANKS:
        rows.append(run_apart(ranks))
        print(json.dumps({key: value for key, value in rows[-1].items() if key != "eigenvalues"}), flush=True)
    found = conclude(rows)
    for stage, one in found.items():
        print(f"{stage}: {one['fixed']:.2f} + {one['shared']:.2f} / R; {RANKS[-1]} ranks {100 * one['error']:+.0f} %")
    given.out.write_text(json.dumps({"sizes": sizes(POINT), "points": rows, "fits": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
