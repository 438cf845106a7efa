"""Show progress on stderr: a bar for the whole operation, and a line for each iteration."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hessian_surgery.operation.iteration_record import IterationRecord
from hessian_surgery.operation.observer import Observer

# Where each stage starts within an iteration's part of the bar, and its share of that part. If no
# spikes are sought, directions have the share of "lanczos" as well.
STAGES = {
    "lanczos": (0.0, 0.3),
    "sensitivity": (0.3, 0.65),
    "directions": (0.3, 0.5),
    "plan": (0.8, 0.15),
    "measure": (0.95, 0.05),
}


class BarObserver(Observer):
    """A bar with the stage and the time left, if stderr is a terminal.

    Args:
        console: where to print.
        total: what the bar counts to; None if that is not known yet.
    """

    def __init__(self, console: Console, total: int | None = None) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("[progress.description]{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("starting", total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def remark(self, text: str) -> None:
        """Show what comes next: beside the bar, or in a line of its own if there is no bar."""
        if self._console.is_terminal:
            self._progress.update(self._task, description=escape(text), completed=0, total=None)
        else:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def stage(self, name: str, done: int, total: int) -> None:
        """Move the bar."""
        self._progress.update(self._task, description=escape(name), completed=done, total=total)


class TerminalObserver(BarObserver):
    """The bar of a whole operation, and a line for each iteration.

    Args:
        console: where to print.
        iterations: how many there will be.
        opening: lines to print when work begins. By then the input has been checked.
    """

    def __init__(self, console: Console, iterations: int, opening: tuple[str, ...] = ()) -> None:
        super().__init__(console, iterations)
        self._opening = list(opening)
        self._total = iterations
        self._finished = 0
        self._sought = False
        self._before = ""
        self._remarks: set[str] = set()

    def remark(self, text: str) -> None:
        """Keep a line, to print when work begins; what every fold says again is printed once."""
        if text not in self._remarks:
            self._opening.append(text)
        self._remarks.add(text)

    def fold(self, number: int, total: int) -> None:
        """Start the bar again, for the operation without a fold."""
        self._finished = 0
        self._before = f"fold {number}/{total} · "
        self._opening.append(f"without fold {number} of {total}")
        self._print_remarks()

    def stage(self, name: str, done: int, total: int) -> None:
        """Move the bar within the current iteration."""
        self._print_remarks()
        self._sought = self._sought or name == "lanczos"
        start, share = STAGES[name]
        if name == "directions" and not self._sought:
            start, share = 0.0, start + share
        number = f"iteration {self._finished + 1}/{self._total} · " if self._total > 1 else ""
        text = f"{self._before}{number}{name} {done}/{total}"
        position = self._finished + start + share * done / total
        # Refresh at the end, so that a quick stage shows too.
        self._progress.update(self._task, completed=position, description=text, refresh=done == total)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if error is None:
            self._print_remarks()

    def _print_remarks(self) -> None:
        while self._opening:
            self._console.print(self._opening.pop(0), highlight=False, markup=False, soft_wrap=True)

    def iteration(self, record: IterationRecord) -> None:
        """Print the line of an iteration."""
        self._finished = record.iteration
        self._progress.update(self._task, completed=record.iteration)
        self._console.print(
            f"{record.iteration:>3}/{self._total} {_outcome(record)} σ {100 * record.sigma:5.2f} pp  "
            f"worst {100 * record.worst:4.1f} %  accuracy {100 * record.accuracy:4.1f} %  "
            f"step {record.reach:.2g}  {sum(record.seconds.values()):.1f} s",
            highlight=False,
            soft_wrap=True,
        )


def _outcome(record: IterationRecord) -> str:
    """Say what became of an iteration, padded to one width."""
    if record.accepted:
        return "[green]accepted   [/]"
    return "[yellow]rolled back[/]" if record.reach > 0 else "[yellow]no step    [/]"
