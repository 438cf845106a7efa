"""Several processes that share the jobs: each takes the next one that no other is at.

One process leaves most of a large GPU idle: its kernels are short, and it prepares them one by one.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext, SpawnProcess

import torch

from hessian_surgery.errors import FileError, InputError, InUse, RankLost
from hessian_surgery.operation.observer import Observer
from hessian_surgery.plain_text import reason
from hessian_surgery.ranks import Ranks, acting
from hessian_surgery.reproduce.catalogue import choose_items
from hessian_surgery.reproduce.jobs import Job, Reproduction, jobs_of, measure, open_benches

# Seconds between two looks at what is finished, and until a process looks for work again.
POLL = 0.2
# What a process says, as the first of two words.
REMARK, WRONG, FILE, FAILED = "remark", "wrong", "file", "failed"


@dataclass(frozen=True)
class _Worker:
    process: SpawnProcess
    heard: Connection


class _Telling(Observer):
    """Passes remarks on to the process that shows them."""

    def __init__(self, told: Connection) -> None:
        self._told = told

    def remark(self, text: str) -> None:
        """Send it."""
        self._told.send((REMARK, text))


def share(names: Sequence[str], jobs: Sequence[Job], asked: Reproduction, observer: Observer) -> Iterator[int]:
    """Do jobs in several processes; tell now and then how many are done.

    Args:
        names: of the items that the jobs are of.
        jobs: what is left to do.
        asked: how.
        observer: told remarks.

    Raises:
        InputError: what a process found to be wrong.
        RankLost: a process was killed.
    """
    context = multiprocessing.get_context("spawn")
    workers: list[_Worker] = []
    try:
        while len(workers) < asked.processes:
            workers.append(_start(context, names, asked))
        while sum(_listen(worker, observer) for worker in workers):
            yield sum(job.path.exists() for job in jobs)
            wait([worker.heard for worker in workers if worker.process.is_alive()], POLL)
        yield len(jobs)
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join()


def _start(context: SpawnContext, names: Sequence[str], asked: Reproduction) -> _Worker:
    heard, told = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(told, list(names), asked), daemon=True)
    with _deaf_to_interrupts():
        process.start()
    told.close()
    return _Worker(process, heard)


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """A process that starts in this block leaves Ctrl-C to this one, which then ends it."""
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _listen(worker: _Worker, observer: Observer) -> bool:
    """Take what a process says, and raise its errors; return whether it is still at work."""
    alive = worker.process.is_alive()
    try:
        while worker.heard.poll():
            kind, text = worker.heard.recv()
            if kind == REMARK:
                observer.remark(text)
            else:
                raise {WRONG: InputError, FILE: FileError}.get(kind, RuntimeError)(text)
    except EOFError:
        pass
    if not alive and worker.process.exitcode:
        raise RankLost(f"one of the processes has ended with code {worker.process.exitcode}")
    return alive


def _work(told: Connection, names: list[str], asked: Reproduction) -> None:
    """Do jobs until none is left, in a process of its own."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(max(1, torch.get_num_threads() // asked.processes))
    try:
        with acting(Ranks(nearby=asked.processes)):  # they share what memory is free
            _work_on(jobs_of(choose_items(names), asked), asked, _Telling(told))
    except InputError as error:
        told.send((FILE if isinstance(error, FileError) else WRONG, str(error)))
    except torch.OutOfMemoryError as error:
        told.send((WRONG, f"processes: the device's memory is full; give fewer: {reason(error)}"))
    except Exception as error:
        told.send((FAILED, reason(error)))
        raise
    sys.stdout.flush()


def _end_with_parent() -> None:
    """End this process when the one that started it ends, however that happens."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work_on(jobs: Sequence[Job], asked: Reproduction, observer: Observer) -> None:
    benches = open_benches(jobs, asked, observer)
    while left := [job for job in jobs if not job.path.exists()]:
        started = time.perf_counter()
        taken = 0
        for job in left:
            with suppress(InUse):
                measure(job, benches[job.dataset], asked.processes)
                taken += 1
        if not taken:  # others are at all of it: look again, but do not keep the machine busy with that
            time.sleep(POLL + time.perf_counter() - started)
