"""Observer: what is told about an operation's progress."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from hessian_surgery.operation.iteration_record import IterationRecord
from hessian_surgery.operation.schedule import Expected


class Observer:
    """Told what an operation is doing; this one does nothing.

    Example:
        >>> class Told(hs.Observer):
        ...     def iteration(self, record):
        ...         print("iteration", record.iteration)
        ...     def end(self, outcome):
        ...         print(outcome.verdict.outcome)
        >>> parts = {"training_data": train, "calibration_data": calibration}
        >>> _ = hs.operate(model, **parts, heldout_data=heldout, observer=Told())
        iteration 1
        better
    """

    def remark(self, text: str) -> None:
        """Take note of what a person should know before the work begins."""

    def reading(self, done: int, total: int) -> None:
        """Take note that `done` of `total` samples of a part of the data have been read."""

    def expect(self, stages: Callable[[], Sequence[Expected]], in_seconds: bool = True) -> None:
        """Take note that the input has been checked; `stages` says what is to come, if called.

        With `in_seconds` false, what it says are shares of a time that is not known.
        """

    def fold(self, number: int, total: int) -> None:
        """Take note that the operation without fold `number` of `total` begins."""

    def stage(self, name: str, done: float, total: int) -> None:
        """Take note that `done` of `total` units of a stage, such as "directions", are finished.

        A stage is told with 0 done when it begins.
        """

    def iteration(self, record: IterationRecord) -> None:
        """Take note of a finished iteration."""

    def end(self, outcome: Any) -> None:
        """Take note of the finished operation, an `Outcome`; the patched weights are in place."""


class Both(Observer):
    """Tells two observers, the first one first."""

    def __init__(self, first: Observer, second: Observer) -> None:
        self._told = (first, second)

    def remark(self, text: str) -> None:
        """Pass it on."""
        for observer in self._told:
            observer.remark(text)

    def reading(self, done: int, total: int) -> None:
        """Pass it on."""
        for observer in self._told:
            observer.reading(done, total)

    def expect(self, stages: Callable[[], Sequence[Expected]], in_seconds: bool = True) -> None:
        """Pass it on; what is to come is found out once, as that takes a trial."""
        once = cache(stages)
        for observer in self._told:
            observer.expect(once, in_seconds)

    def fold(self, number: int, total: int) -> None:
        """Pass it on."""
        for observer in self._told:
            observer.fold(number, total)

    def stage(self, name: str, done: float, total: int) -> None:
        """Pass it on."""
        for observer in self._told:
            observer.stage(name, done, total)

    def iteration(self, record: IterationRecord) -> None:
        """Pass it on."""
        for observer in self._told:
            observer.iteration(record)

    def end(self, outcome: Any) -> None:
        """Pass it on."""
        for observer in self._told:
            observer.end(outcome)


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Add how long a block takes."""
    start = time.perf_counter()
    yield
    seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - start
