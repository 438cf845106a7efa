"""Jobs: one split of one item on one data set each; what is finished is never run again."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hessian_surgery.files import making
from hessian_surgery.operation.environment import environment
from hessian_surgery.operation.observer import Observer
from hessian_surgery.reproduce.item import Item
from hessian_surgery.reproduce.loop_runs import free_memory
from hessian_surgery.reproduce.starts import Start
from hessian_surgery.reproduce.workbench import Workbench
from hessian_surgery.sealed import write_sealed


@dataclass(frozen=True)
class Reproduction:
    """How items are run.

    Attributes:
        starts: where data and network are, by data set.
        device: what to run on.
        folder: where everything is written.
        splits: how many halvings of the test images; None for each item's own number.
        quick: whether the digits stand for all data sets.
        command: what the user gave, for the pages.
        processes: how many share the work, and the device.
    """

    starts: dict[str, Start]
    device: torch.device
    folder: Path
    splits: int | None = None
    quick: bool = False
    command: str = ""
    processes: int = 1


@dataclass(frozen=True)
class Job:
    """A split of an item on one data set.

    Attributes:
        item: what is measured.
        dataset: on what.
        split: the seed that halves the test images.
        path: the file that holds what is found.
    """

    item: Item
    dataset: str
    split: int
    path: Path


def jobs_of(items: Sequence[Item], asked: Reproduction) -> list[Job]:
    """All jobs of some items; where several processes share them, trainings come first."""
    jobs = [
        Job(item, dataset, split, asked.folder / item.name / f"{dataset}-split-{split}.json")
        for item in items
        for dataset in item.datasets
        for split in range(splits_of(item, asked))
    ]
    # They take long, and are made for the first split: the others need them.
    return jobs if asked.processes == 1 else sorted(jobs, key=lambda job: not (job.item.trains and job.split == 0))


def splits_of(item: Item, asked: Reproduction) -> int:
    """How many splits an item is run on."""
    return item.splits if asked.splits is None else min(asked.splits, item.splits)


def open_benches(jobs: Sequence[Job], asked: Reproduction, observer: Observer) -> dict[str, Workbench]:
    """The workbench of each data set; `observer` is told remarks only."""
    return {
        name: Workbench(
            name, asked.starts[name], asked.device, asked.folder / "shared" / name, asked.quick, _Quiet(observer)
        )
        for name in dict.fromkeys(job.dataset for job in jobs)
    }


class _Quiet(Observer):
    """Passes remarks on; stages and iterations of single runs stay out of the progress of all."""

    def __init__(self, inner: Observer) -> None:
        self._inner = inner

    def remark(self, text: str) -> None:
        """Pass it on."""
        self._inner.remark(text)


def measure(job: Job, bench: Workbench, processes: int) -> None:
    """Do a job that is not done yet; where and how is noted beside what it finds.

    Raises:
        InUse: another process is at it, or at what it needs.
    """
    with making(job.path) as missing:
        if missing:
            start = time.perf_counter()
            found = job.item.measure(bench, job.split)
            seconds = time.perf_counter() - start
            run = {"split": job.split, "seconds": seconds, "processes": processes}
            write_sealed(job.path, run | {"environment": environment(bench.device), "measured": found})
    free_memory()
