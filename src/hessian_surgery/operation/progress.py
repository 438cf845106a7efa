"""Show progress on stderr: one bar on a terminal; elsewhere a line now and then."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hessian_surgery.operation.iteration_record import IterationRecord
from hessian_surgery.operation.observer import Both, Observer
from hessian_surgery.operation.schedule import Expected, Schedule
from hessian_surgery.ranks import present
from hessian_surgery.terminal import SafeConsole

# Seconds between two lines where output is no terminal.
BETWEEN_LINES = 30.0
# A run of more seconds is long.
LONG = 3600.0
# Columns of the bar.
WIDTH = 24


class ShownProgress(Observer):
    """The stage, the share done and the time left; and a line for each iteration.

    Nothing but the bar is shown before `expect`: until then the input is being checked.

    Args:
        console: where to print; by default stderr.
        opening: lines to print when work begins.
        schedule: knows the time left.
        if_long: a line to print if more than an hour is expected.
    """

    def __init__(
        self,
        console: SafeConsole | None = None,
        opening: Sequence[str] = (),
        schedule: Schedule | None = None,
        if_long: str = "",
    ) -> None:
        self._console = console or SafeConsole(stderr=True, quiet=not present().writes)
        self._schedule = schedule or Schedule()
        self._opening = list(opening)
        self._known = set(opening)
        self._if_long = if_long
        self._stages: set[str] = set()
        self._before = ""
        self._text = "checking"
        self._iterations = 0
        self._finished = 0
        self._working = False
        self._end = threading.Event()
        self._live = Live(
            console=self._console, get_renderable=self._bar, transient=True, refresh_per_second=4, auto_refresh=True
        )
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        else:
            self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._live.stop()
        if error is None:
            self._print_opening()

    def remark(self, text: str) -> None:
        """Keep a line, to print when work begins; what every fold says again is printed once."""
        if text not in self._known:
            self._opening.append(text)
        self._known.add(text)

    def reading(self, done: int, total: int) -> None:
        """Show how many samples have been read; where output is no terminal, if it takes long."""
        self._text = f"reading {done:,} of {total:,}"
        self._working = True

    def expect(self, stages: Callable[[], Sequence[Expected]], in_seconds: bool = True) -> None:
        """Ask what is to come, now that the input has been checked."""
        self._print_opening()
        self._text = "estimating the time"
        expected = stages()
        self._schedule.expect(expected, in_seconds)
        if in_seconds and self._if_long and sum(stage.seconds for stage in expected) > LONG:
            self._opening.append(self._if_long)
            self._print_opening()
        self._iterations = self._schedule.iterations
        self._working = True

    def fold(self, number: int, total: int) -> None:
        """Go on with the operation without a fold."""
        self._schedule.skip(fold=number - 1)
        self._finished = 0
        self._before = f"fold {number}/{total} · "
        self._opening.append(f"without fold {number} of {total}")
        self._print_opening()

    def stage(self, name: str, done: float, total: int) -> None:
        """Show the stage."""
        self._print_opening()
        self._schedule.stage(name, done, total)
        several = self._iterations > 1 and self._schedule.in_iteration
        number = f"iteration {self._finished + 1}/{self._iterations} · " if several else ""
        self._text = f"{self._before}{number}{name}" + (f" {int(done)}/{total}" if total > 1 else "")
        self._working = True
        if name not in self._stages:
            self._stages.add(name)
            self._show()

    def iteration(self, record: IterationRecord) -> None:
        """Print the line of an iteration."""
        self._finished = record.iteration
        self._schedule.skip(iteration=record.iteration)
        of_all = f"/{self._iterations}" if self._iterations else ""
        self._console.print(
            f"{record.iteration:>3}{of_all} {_outcome(record)} σ {100 * record.sigma:5.2f} pp  "
            f"worst {100 * record.worst:4.1f} %  accuracy {100 * record.accuracy:4.1f} %  "
            f"step {record.reach:.2g}  {sum(record.seconds.values()):.1f} s",
            highlight=False,
            soft_wrap=True,
        )

    def line(self) -> str:
        """What is shown where output is no terminal: stage, share done, elapsed, left."""
        share = f" · {100 * self._schedule.share:.0f} % done"
        left = "" if self._schedule.left is None else f" · left {clock_time(self._schedule.left)}"
        return f"{self._text}{share} · elapsed {clock_time(self._schedule.elapsed, up=False)}{left}"

    def _print_opening(self) -> None:
        while self._opening:
            self._console.print(self._opening.pop(0), highlight=False, markup=False, soft_wrap=True)

    def _show(self) -> None:
        """Show at once what has changed: a quick stage shows too."""
        if self._live.is_started:
            self._live.refresh()
        elif not self._console.is_terminal:
            self._console.print(self.line(), highlight=False, markup=False, soft_wrap=True)

    def _tick(self) -> None:
        while not self._end.wait(BETWEEN_LINES):
            if self._working:
                self._show()

    def _bar(self) -> Table:
        """The bar, as it is now."""
        grid = Table.grid(padding=(0, 1))
        left = self._schedule.left
        pulse = left is None
        bar = ProgressBar(total=1.0, completed=self._schedule.share, width=WIDTH, pulse=pulse)
        known = "" if left is None else f"left {clock_time(left)}"
        grid.add_row(Text(self._text), bar, Text(clock_time(self._schedule.elapsed, up=False)), Text(known))
        return grid


@contextmanager
def watched(observer: Observer | None, progress: bool) -> Iterator[Observer]:
    """The observer that was given, a bar if `progress` asks for one, both, or one for neither."""
    if not progress:
        yield observer or Observer()
        return
    with ShownProgress() as shown:
        yield shown if observer is None else Both(shown, observer)


def clock_time(seconds: float, up: bool = True) -> str:
    """Hours, minutes and seconds; with `up` rounded up, and never 0."""
    whole = max(1, math.ceil(seconds)) if up else int(seconds)
    return str(timedelta(seconds=whole))


def _outcome(record: IterationRecord) -> str:
    """Say what became of an iteration, padded to one width."""
    if record.accepted:
        return "[green]accepted   [/]"
    return "[yellow]rolled back[/]" if record.reach > 0 else "[yellow]no step    [/]"
