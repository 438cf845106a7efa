"""How the time and memory of an operation grow with classes, images and weights.

    python -m benchmarks.scaling --device cpu

Each point is measured in a process of its own. Sums of a few terms are fitted to all points but
one, and checked on that one.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch

from benchmarks.scaling_case import Point, measure, sizes
from benchmarks.scaling_fit import BYTES, SECONDS, STAGES, errors_left_out, fit, growth, predict, predict_total, total

RESULTS = Path(__file__).parent / "results" / "scaling.json"
# Classes, calibration images, width of the network. The last is left out of the fits: it has the
# most classes and the most images.
POINTS = (
    Point(10, 2000, 8),
    Point(10, 5000, 8),
    Point(10, 20_000, 8),
    Point(100, 5000, 8),
    Point(100, 5000, 24),
    Point(100, 20_000, 8),
    Point(1000, 5000, 8),
    Point(1000, 5000, 24),
    Point(1000, 10_000, 8),
    Point(300, 6000, 12),
    Point(300, 20_000, 8),
    Point(1000, 20_000, 8),
)
# What is predicted beyond all points.
BEYOND = Point(10_000, 50_000, 8)
# On a machine with other work, the CPU time of one thread says more than the clock on the wall.
CLOCKS = ("wall", "cpu")
# A prediction must come this close.
CLOSE = 0.25


def as_point(text: str) -> Point:
    """A point from C:N:width."""
    classes, images, width = map(int, text.split(":"))
    return Point(classes, images, width)


def as_text(point: Point) -> str:
    """A point as C:N:width."""
    return ":".join(map(str, astuple(point)))


def run_apart(point: Point, device: str, repeats: int, clock: str) -> dict[str, Any]:
    """Measure a point in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.scaling", "--one", as_text(point)]
    command += ["--device", device, "--repeats", str(repeats), "--clock", clock]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def conclude(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Fits to all points but the last, its check, and what they predict beyond."""
    fits = {stage: fit(rows[:-1], stage) for stage in STAGES}
    beyond = sizes(BEYOND)
    return {
        "growth": growth(rows),
        "fits": fits,
        "left_out": [errors_left_out(rows, i) for i in range(len(rows))],
        "beyond": {"sizes": beyond, "total": predict_total(fits, beyond)}
        | {stage: predict(fits[stage], stage, beyond) for stage in STAGES},
    }


def show_row(row: dict[str, Any]) -> None:
    """Print one measured point."""
    at = row["sizes"]
    stages = "  ".join(f"{stage} {seconds:.2f}" for stage, seconds in row["seconds"].items())
    sizes_of = f"C {at['classes']}  N {at['images']}  K {at['directions']}  p {at['weights']}"
    sigma = " → ".join(f"{100 * value:.1f}" for value in row["sigma"])
    print(f"{sizes_of}  total {total(row):.2f} s  {stages}  {row['bytes'] / 1e6:.0f} MB  σ {sigma} pp", flush=True)


def show_conclusions(rows: list[dict[str, Any]], found: dict[str, Any]) -> None:
    """Print growth, coefficients and errors."""
    for step in found["growth"]:
        print(
            f"C {step['from']} → {step['to']} at N {step['images']}: seconds × {step['seconds']:.2f}, "
            f"bytes × {step['bytes']:.2f}; C log C × {step['C log C']:.1f}"
        )
    for stage, coefficients in found["fits"].items():
        print(stage, "  ".join(f"{name} {value:.2e}" for name, value in coefficients.items() if value))
    print("relative error of the prediction for each point, from the others:")
    for row, errors in zip(rows, found["left_out"], strict=True):
        at = row["sizes"]
        shown = "  ".join(f"{stage} {100 * error:+.0f} %" for stage, error in errors.items())
        print(f"{at['classes']}:{at['images']}:{at['width']}  {shown}")
    kept = all(abs(found["left_out"][-1][key]) <= CLOSE for key in ("total", *BYTES))
    print(f"left out, total and memory within {CLOSE:.0%}: {kept}")
    beyond = found["beyond"]
    parts = "  ".join(f"{stage} {beyond[stage]:.0f} s" for stage in SECONDS)
    print(f"{as_text(BEYOND)}: total {beyond['total']:.0f} s  {parts}  {beyond['bytes'] / 1e9:.1f} GB")


def main() -> None:
    """Measure every point, fit, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--points", nargs="+", type=as_point, default=POINTS, help="C:N:width; the last is left out")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each point")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="wall time, or one thread's CPU time")
    parser.add_argument("--again", action="store_true", help="fit the measured points of --out again")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", type=as_point, help="measure one point in this process")
    given = parser.parse_args()
    if given.one:
        if given.clock == "cpu":
            torch.set_num_threads(1)
            time.perf_counter = time.process_time  # the operation times its stages by it
        print(json.dumps(measure(given.one, torch.device(given.device), given.repeats)))
        return
    threads = 1 if given.clock == "cpu" else torch.get_num_threads()
    setting: dict[str, Any] = {
        "device": given.device,
        "clock": given.clock,
        "threads": threads,
        "torch": torch.__version__,
    }
    if given.again:
        known = json.loads(given.out.read_text())
        setting = {name: known[name] for name in setting}
        rows = known["points"]
    else:
        rows = []
        for point in given.points:
            rows.append(run_apart(point, given.device, given.repeats, given.clock))
            show_row(rows[-1])
    found = conclude(rows)
    show_conclusions(rows, found)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(setting | {"points": rows} | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
