"""Run items split by split; what is finished is never run again."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hessian_surgery.files import write_json, write_text
from hessian_surgery.operation.environment import environment
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.schedule import Expected
from hessian_surgery.report.figure_style import save_figure
from hessian_surgery.reproduce.catalogue import CATALOGUE
from hessian_surgery.reproduce.item import Item, Measured
from hessian_surgery.reproduce.loop_runs import free_memory
from hessian_surgery.reproduce.page import item_page
from hessian_surgery.reproduce.row import unjudged
from hessian_surgery.reproduce.starts import Start
from hessian_surgery.reproduce.workbench import Workbench
from hessian_surgery.sealed import read_sealed, write_sealed

QUICK_NOTE = "a quick run on digits shows that the item works, and says nothing about the paper"


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
    """

    starts: dict[str, Start]
    device: torch.device
    folder: Path
    splits: int | None = None
    quick: bool = False
    command: str = ""


def run_items(items: Sequence[Item], asked: Reproduction, observer: Observer) -> list[dict[str, Any]]:
    """Run each item on each split that is not there yet, and write its JSON, page and figure.

    Returns:
        The contents of each item's JSON, in order.
    """
    benches = {name: _bench(name, asked, observer) for item in items for name in item.datasets}
    jobs = [
        (item, dataset, split) for item in items for dataset in item.datasets for split in range(_splits(item, asked))
    ]
    todo = [job for job in jobs if not _path(asked, *job).exists()]
    observer.expect(lambda: [Expected("reproduce", 1.0)], in_seconds=False)
    for done, (item, dataset, split) in enumerate(todo):
        observer.stage("reproduce", done, len(todo))
        _measure(item, benches[dataset], split, _path(asked, item, dataset, split))
    return [_finish(item, asked) for item in items]


def _bench(dataset: str, asked: Reproduction, observer: Observer) -> Workbench:
    folder = asked.folder / "shared" / dataset
    return Workbench(dataset, asked.starts[dataset], asked.device, folder, asked.quick, _Quiet(observer))


class _Quiet(Observer):
    """Passes remarks on; stages and iterations of single runs stay out of the progress of all."""

    def __init__(self, inner: Observer) -> None:
        self._inner = inner

    def remark(self, text: str) -> None:
        """Pass it on."""
        self._inner.remark(text)


def _splits(item: Item, asked: Reproduction) -> int:
    return item.splits if asked.splits is None else min(asked.splits, item.splits)


def _path(asked: Reproduction, item: Item, dataset: str, split: int) -> Path:
    return asked.folder / item.name / f"{dataset}-split-{split}.json"


def _measure(item: Item, bench: Workbench, split: int, path: Path) -> None:
    start = time.perf_counter()
    found = item.measure(bench, split)
    seconds = time.perf_counter() - start
    write_sealed(path, {"split": split, "seconds": seconds, "measured": found})
    free_memory()


def _finish(item: Item, asked: Reproduction) -> dict[str, Any]:
    """Collect an item's splits into `NAME.json`, `NAME.md` and `NAME.svg`."""
    files = {
        dataset: [read_sealed(_path(asked, item, dataset, split), "out") for split in range(_splits(item, asked))]
        for dataset in item.datasets
    }
    measured: dict[str, Sequence[Measured]] = {
        dataset: [file["measured"] for file in found] for dataset, found in files.items()
    }
    rows = item.rows(measured)
    if asked.quick:
        rows = [unjudged(row, QUICK_NOTE) for row in rows]
    content = {
        "item": item.name,
        **CATALOGUE[item.name]._asdict(),
        "command": asked.command,
        "quick": asked.quick,
        "inputs": {name: asked.starts[name].named() for name in files},
        "splits": _splits(item, asked),
        "seconds": sum(file["seconds"] for found in files.values() for file in found),
        "rows": [row.as_dict() for row in rows],
        "environment": environment(asked.device),
        "measured": measured,
    }
    if item.draw is not None:
        save_figure(item.draw(measured), asked.folder / f"{item.name}.svg")
    write_json(asked.folder / f"{item.name}.json", content)
    write_text(asked.folder / f"{item.name}.md", item_page(content, figure=item.draw is not None))
    return content
