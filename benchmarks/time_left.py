"""How good the time left is: what the progress shows after a third of a run, beside the truth.

    python -m benchmarks.time_left                         the digits demo
    python -m benchmarks.time_left --data parquet:cifar10  and a ResNet-18 on CIFAR images

The time left is read four times a second while an operation runs, as on a terminal. Weights of the
ResNet-18 are random, but for a few steps: how long a run takes does not depend on them. Each run
is compared with itself, so that other work on the machine matters little.
"""

import argparse
import json
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hessian_surgery as hs
from hessian_surgery.cli.inputs import digits_net
from hessian_surgery.data.sources import Parts, open_data
from hessian_surgery.model.resnet import resnet18
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.schedule import Schedule

RESULTS = Path(__file__).parent / "results/time_left.json"
# After a third of the run the time left must be within this factor of the truth.
FACTOR = 2.0
# Images of each part, and seconds between two looks.
IMAGES = 300
BETWEEN = 0.25


class Reader(Observer):
    """Writes down the time left, again and again."""

    def __init__(self) -> None:
        self.schedule = Schedule()
        self.rows: list[tuple[float, float, str]] = []
        self._name = ""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def expect(self, stages: Any, in_seconds: bool = True) -> None:
        """Begin to read."""
        self.schedule.expect(stages(), in_seconds)
        self._thread.start()

    def stage(self, name: str, done: float, total: int) -> None:
        """Pass it on."""
        self._name = name
        self.schedule.stage(name, done, total)

    def stop(self) -> None:
        """Read no more."""
        self._end.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._end.wait(BETWEEN):
            left = self.schedule.left
            if left is not None:
                self.rows.append((self.schedule.elapsed, left, self._name))


def cifar_net(data: str) -> tuple[nn.Module, Parts]:
    """A ResNet-18, trained for a moment, and some images of each part."""
    torch.manual_seed(0)
    parts = open_data(data, 0)
    some = Parts(*(part.subset(torch.arange(IMAGES)) for part in (parts.training, parts.calibration, parts.heldout)))
    net = resnet18(len(parts.training.classes))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for inputs, labels in some.training.batches(100, torch.device("cpu")):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs), labels).backward()
        optimizer.step()
    optimizer.zero_grad()
    return net.eval(), some


def measure(net: nn.Module, parts: Parts) -> dict[str, Any]:
    """Operate, with the page's front; compare what was shown with what was true."""
    reader = Reader()
    started = time.monotonic()
    hs.operate(
        net,
        training_data=parts.training,
        calibration_data=parts.calibration,
        heldout_data=parts.heldout,
        front=True,
        observer=reader,
    )
    length = time.monotonic() - started
    reader.stop()
    seen = [row for row in reader.rows if row[0] < length]
    elapsed, left, stage = min(seen, key=lambda row: abs(row[0] - length / 3))
    worst = [left / (length - at) for at, left, _ in seen if length / 3 <= at <= 0.9 * length]
    return {
        "seconds": length,
        "at": elapsed,
        "stage": stage,
        "left": left,
        "truth": length - elapsed,
        "ratio": left / (length - elapsed),
        "lowest": min(worst),
        "highest": max(worst),
    }


def main() -> None:
    """Measure each case; print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="CIFAR images, such as parquet:cifar10; without it the digits only")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows: dict[str, list[dict[str, Any]]] = {}
    for number in range(given.repeats):
        cases = {"digits": digits_net(number)}
        if given.data:
            cases["resnet18-cifar"] = cifar_net(given.data)
        for name, (net, parts) in cases.items():
            found = measure(net, parts)
            rows.setdefault(name, []).append(found)
            print(
                f"{name:15} {found['seconds']:6.1f} s; after {found['at']:5.1f} s ({found['stage']}) left "
                f"{found['left']:5.1f}, in truth {found['truth']:5.1f}: {found['ratio']:.2f}; from then on "
                f"{found['lowest']:.2f} to {found['highest']:.2f}"
                + " outside"
                * (not 1 / FACTOR <= found["ratio"] <= FACTOR),
                flush=True,
            )
    given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
