"""Faults on purpose: every change that a command makes to its folder can be crossed by one.

Python tells an audit hook of each file that is opened, renamed or removed, before it happens. A
kill is a copy of the folder at that moment: that is all that a killed process leaves behind.
"""

import errno
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

import hessian_surgery as hs
from conftest import points

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree")
# Called with the event and the path of each change below a folder, or of each file that is read.
_watched: list[tuple[Path, Callable[[str, Path], None]]] = []
_installed = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watched or (event != "open" and event not in CHANGES):
        return
    folder, tell = _watched[-1]
    if not isinstance(arguments[0], str | bytes | os.PathLike):
        return
    path = Path(os.path.abspath(os.fsdecode(arguments[0])))
    if event == "open":
        event = "write" if arguments[2] & (os.O_WRONLY | os.O_RDWR) else "read"
    if path.is_relative_to(folder):
        _watched.append((Path("/nowhere"), lambda *_: None))  # what `tell` does itself is not told
        try:
            tell(event, path)
        finally:
            _watched.pop()


@contextmanager
def told(folder: Path, tell: Callable[[str, Path], None]) -> Iterator[None]:
    """Call `tell` before anything below a folder is read ("read") or changed (any other event)."""
    if not _installed:
        sys.addaudithook(_hook)
        _installed.append(True)
    _watched.append((folder.resolve(), tell))
    try:
        yield
    finally:
        _watched.pop()


def snapshots(folder: Path, copies: Path) -> Callable[[str, Path], None]:
    """Copies the folder before each change, unless it is as it was at the change before."""
    last: list[dict[str, bytes]] = []

    def tell(event: str, path: Path) -> None:
        now = contents(folder)
        if event != "read" and now not in last:
            last.append(now)
            shutil.copytree(folder, copies / f"{len(last):03d}")

    return tell


def fails_at(number: int, code: int = errno.ENOSPC) -> Callable[[str, Path], None]:
    """From change `number` on, from 1, nothing can be written or renamed."""
    seen = 0

    def tell(event: str, path: Path) -> None:
        nonlocal seen
        seen += event != "read"
        if seen >= number and event in ("write", "os.rename", "os.mkdir"):
            raise OSError(code, os.strerror(code), str(path))

    return tell


def acts_at(number: int, act: Callable[[], None]) -> Callable[[str, Path], None]:
    """Do something before change `number`, from 1."""
    seen = 0

    def tell(event: str, path: Path) -> None:
        nonlocal seen
        seen += event != "read"
        if seen == number and event != "read":
            act()

    return tell


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# What a killed process may leave beside its results.
LEFT = re.compile(
    r"(^|/)(\.hessian-surgery\.lock|unfinished\.txt|splits-.+|\..+\.hessian-surgery)$|(^|/)checkpoint/|\.training/"
)
TIMES = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\+00:00)?|\b\d+(\.\d+)? (s|ms|min|seconds)\b|\d+:\d\d(:\d\d)?"
)
MEASURED = ("date", "peak_bytes")
# Seconds in tables have one digit after the point; other such numbers are in the JSON too.
CELLS = re.compile(r"\b\d+\.\d\b")


def results(folder: Path) -> dict[str, object]:
    """What a command has written, without times."""
    kept = {name: data for name, data in contents(folder).items() if not LEFT.search(name)}
    return {name: _without_times(name, data) for name, data in kept.items() if not name.endswith("/time.json")}


def _without_times(name: str, data: bytes) -> object:
    if name.endswith((".json", ".jsonl")):
        return [_timeless(json.loads(line)) for line in ([data] if name.endswith(".json") else data.splitlines())]
    if name.endswith((".html", ".md", ".svg")):
        return CELLS.sub("", TIMES.sub("", data.decode()))
    return data


def _timeless(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _timeless(value) for key, value in content.items() if "seconds" not in key and key not in MEASURED}
    if isinstance(content, list):
        return [_timeless(value) for value in content]
    return TIMES.sub("", content) if isinstance(content, str) else content


# A small case: points of three classes in the plane, for `--model faults:net`.
def net() -> nn.Module:
    """A net with one hidden layer."""
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))


def training() -> hs.LabelledSet:
    """Points to train on."""
    return points(100, 1)


def calibration() -> hs.LabelledSet:
    """Points to decide on."""
    return points(80, 2)


def heldout() -> hs.LabelledSet:
    """Points to judge by."""
    return points(80, 3)


def trained_net() -> nn.Module:
    """The net, trained so that one class is favoured."""
    torch.manual_seed(0)
    module, data = net(), training()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(data.inputs()), data.labels, weight=torch.tensor([3.0, 1.0, 1.0]))
        loss.backward()
        optimizer.step()
    return module


class Shard(Dataset):
    """The points to train on, each read from a file when it is asked for."""

    def __init__(self) -> None:
        self.path = Path("shard.bin").resolve()
        self.targets = training().labels
        self.path.write_bytes(training().inputs().numpy().tobytes())

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        with self.path.open("rb") as file:
            file.seek(8 * i)
            return torch.frombuffer(bytearray(file.read(8)), dtype=torch.float32), int(self.targets[i])


def cannot_read(number: int) -> Callable[[str, Path], None]:
    """From read `number` of the shard on, from 1, it cannot be read."""
    seen = 0

    def tell(event: str, path: Path) -> None:
        nonlocal seen
        seen += event == "read" and path.name == "shard.bin"
        if seen >= number and event == "read" and path.name == "shard.bin":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    return tell


def sharded_training() -> hs.LabelledSet:
    """The points to train on, from a file."""
    return hs.as_labelled(Shard(), ("ant", "bee", "cat"))


def broken(data: hs.LabelledSet) -> hs.LabelledSet:
    """The same points; a batch of them is not a number."""
    inputs = data.inputs().clone()
    inputs[100:120] = torch.nan
    return hs.as_labelled((inputs, data.labels), data.classes)


def broken_training() -> hs.LabelledSet:
    """Points to train on, with a fault."""
    return broken(training())


def broken_calibration() -> hs.LabelledSet:
    """Points to decide on, with a fault."""
    return broken(calibration())


def broken_heldout() -> hs.LabelledSet:
    """Points to judge by, with a fault."""
    return broken(heldout())
