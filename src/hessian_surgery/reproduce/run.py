"""Run items split by split, write their files, and note the time that all of it took."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hessian_surgery.files import write_json, write_text
from hessian_surgery.operation.environment import environment
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.schedule import Expected
from hessian_surgery.report.figure_style import save_figure
from hessian_surgery.reproduce.catalogue import CATALOGUE
from hessian_surgery.reproduce.item import Item, Measured
from hessian_surgery.reproduce.jobs import Job, Reproduction, jobs_of, measure, open_benches, splits_of
from hessian_surgery.reproduce.page import item_page
from hessian_surgery.reproduce.processes import share
from hessian_surgery.reproduce.row import unjudged
from hessian_surgery.sealed import read_sealed, write_sealed

QUICK_NOTE = "a quick run on digits shows that the item works, and says nothing about the paper"
# The file that says how long the commands took that have filled a folder.
TIME = "time.json"
# Seconds between two notes of the time.
BETWEEN = 10.0


def run_items(items: Sequence[Item], asked: Reproduction, observer: Observer) -> list[dict[str, Any]]:
    """Run each item on each split that is not there yet, and write its JSON, page and figure.

    Returns:
        The contents of each item's JSON, in order.
    """
    jobs = jobs_of(items, asked)
    todo = [job for job in jobs if not job.path.exists()]
    if todo:
        observer.expect(lambda: [Expected("reproduce", 1.0)], in_seconds=False)
        observer.stage("reproduce", 0, len(todo))
        _work(items, todo, asked, observer)
    return [_finish(item, asked) for item in items]


def _work(items: Sequence[Item], todo: Sequence[Job], asked: Reproduction, observer: Observer) -> None:
    asked = replace(asked, processes=min(asked.processes, len(todo)))
    watch = _Watch(asked, len(todo), observer)
    if asked.processes == 1:
        benches = open_benches(todo, asked, observer)
        for done, job in enumerate(todo, start=1):
            measure(job, benches[job.dataset], 1)
            watch.note(done)
        return
    for done in share([item.name for item in items], todo, asked, observer):
        watch.look(done)


class _Watch:
    """Tells how many jobs are done, and notes the time as they end."""

    def __init__(self, asked: Reproduction, total: int, observer: Observer) -> None:
        self._asked = asked
        self._total = total
        self._observer = observer
        self._path = asked.folder / TIME
        self._before = read_sealed(self._path, "out")["commands"] if self._path.exists() else []
        self._started = time.perf_counter()
        self._noted = 0.0
        self._done = 0

    def look(self, done: int) -> None:
        """Note the time if more jobs are done, or if some seconds have passed."""
        if done > self._done or time.perf_counter() - self._started > self._noted + BETWEEN:
            self.note(done)

    def note(self, done: int) -> None:
        """Note the time that `done` jobs have taken."""
        seconds = time.perf_counter() - self._started
        self._done, self._noted = done, seconds
        self._observer.stage("reproduce", done, self._total)
        own = {
            "command": self._asked.command,
            "processes": self._asked.processes,
            "device": environment(self._asked.device)["device"],
            "jobs": done,
            "seconds": seconds,
        }
        write_sealed(self._path, {"commands": [*self._before, own]})


def _finish(item: Item, asked: Reproduction) -> dict[str, Any]:
    """Collect an item's splits into `NAME.json`, `NAME.md` and `NAME.svg`."""
    files: dict[str, list[dict[str, Any]]] = {dataset: [] for dataset in item.datasets}
    for job in jobs_of([item], asked):
        files[job.dataset].append(read_sealed(job.path, "out"))
    every = [file for found in files.values() for file in found]
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
        "splits": splits_of(item, asked),
        "seconds": sum(file["seconds"] for file in every),
        "processes": max(file["processes"] for file in every),
        "rows": [row.as_dict() for row in rows],
        "environment": every[0]["environment"],
        "measured": measured,
    }
    if item.draw is not None:
        save_figure(item.draw(measured), asked.folder / f"{item.name}.svg")
    write_json(asked.folder / f"{item.name}.json", content)
    write_text(asked.folder / f"{item.name}.md", item_page(content, figure=item.draw is not None))
    return content
