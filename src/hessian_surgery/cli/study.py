"""`hessian-surgery study NAME`: the paper's experiments, one subcommand each."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hessian_surgery.cli.configs import choose_search
from hessian_surgery.cli.inputs import OpenedModel, open_model
from hessian_surgery.cli.numbers import parse_whole_numbers
from hessian_surgery.cli.options import SearchOptions, SpikeOptions, StudyOptions
from hessian_surgery.cli.output import notes, print_json, print_notes
from hessian_surgery.files import write_json
from hessian_surgery.operation.environment import environment
from hessian_surgery.report.figure_style import save_figure
from hessian_surgery.studies import bulk_walk, effective_rank, linearization, stability
from hessian_surgery.studies.study_inputs import LOG, SEARCH
from hessian_surgery.types import Progress as Report

Tolerance: TypeAlias = Annotated[float | None, typer.Option(help="Relative residual at which a spike has converged.")]
Epsilon: TypeAlias = Annotated[float | None, typer.Option(help="Amplitude of the probe.")]


@dataclass(frozen=True, kw_only=True)
class StabilityOptions(SpikeOptions, StudyOptions):
    """The options of `study stability`."""

    tolerance: Tolerance = None
    steps: Annotated[int | None, typer.Option(help="m of the runs with a fixed number of steps.")] = None
    sizes: Annotated[str | None, typer.Option(help="Batch sizes, such as 64,128,256.")] = None


@dataclass(frozen=True, kw_only=True)
class BulkWalkOptions(SearchOptions, StudyOptions):
    """The options of `study bulk-walk`."""

    tolerance: Tolerance = None
    steps: Annotated[int | None, typer.Option(help="Steps of a walk.")] = None
    length: Annotated[float | None, typer.Option(help="Length of a step.")] = None


@dataclass(frozen=True, kw_only=True)
class ProbeOptions(SearchOptions, StudyOptions):
    """The options of `study linearization` and `study effective-rank`."""

    tolerance: Tolerance = None
    epsilon: Epsilon = None


def study_stability(options: StabilityOptions) -> None:
    """Find how much spikes depend on the Hessian batch and on the number of Lanczos steps."""
    sizes = None if options.sizes is None else parse_whole_numbers("sizes", options.sizes)
    own = {"steps": options.steps, "sizes": sizes}
    conduct("stability", stability.stability, stability, options, ("training",), own)


def study_bulk_walk(options: BulkWalkOptions) -> None:
    """Walk off the spikes, along them and at random, and compare what that does to the loss."""
    own = {"steps": options.steps, "length": options.length}
    conduct("bulk-walk", bulk_walk.bulk_walk, bulk_walk, options, BOTH, own)


def study_linearization(options: ProbeOptions) -> None:
    """Compare planned changes of class accuracy with measured ones, at many step lengths."""
    conduct("linearization", linearization.linearization, linearization, options, BOTH, {"epsilon": options.epsilon})


def study_effective_rank(options: ProbeOptions) -> None:
    """Find how many independent trade-offs S offers, and how much of that is noise."""
    own = {"epsilon": options.epsilon}
    conduct("effective-rank", effective_rank.effective_rank_study, effective_rank, options, BOTH, own)


# The parts of the data that most studies use.
BOTH = ("training", "calibration")


def conduct(
    name: str,
    function: Callable[..., Any],
    module: ModuleType,
    options: Any,
    needs: Sequence[str],
    own: dict[str, Any],
) -> Any:
    """Run a study, write its files and show what it found.

    Args:
        name: of the study, and of its files.
        function: takes the model, the data, the search and the study's own arguments.
        module: draws and describes the result.
        options: of the command.
        needs: the parts of the data that the study uses.
        own: its own arguments; those that are None keep their defaults.

    Returns:
        The study's result.
    """
    opened = open_model(options, needs)
    print_notes(opened.remarks)
    images = [getattr(opened.parts, part) for part in needs]
    given = {key: value for key, value in own.items() if value is not None}
    with _bar(notes(), name) as progress, _remarks(notes()):
        result = function(
            opened.model,
            *images,
            choose_search(options, SEARCH),
            parameters=options.parameters or "*",
            seed=options.seed,
            progress=progress,
            **given,
        )
    content = write_study(name, result, module, opened, options.seed, options.out)
    if options.as_json:
        print_json(content)
    else:
        print(module.describe(result))
    print_notes([f"{name}.json and {name}.svg: {options.out}"])
    return result


def write_study(
    name: str, result: Any, module: ModuleType, opened: OpenedModel, seed: int, folder: Path
) -> dict[str, Any]:
    """Write `NAME.json`, `NAME.svg` and `NAME.png`; returns the contents of the first."""
    content = {
        "study": name,
        "seed": seed,
        "inputs": opened.given,
        **result.as_dict(),
        "environment": environment(opened.classifier.device),
    }
    figure = module.draw(result)
    for suffix in ("svg", "png"):
        save_figure(figure, folder / f"{name}.{suffix}")
    write_json(folder / f"{name}.json", content)
    return content


@contextmanager
def _remarks(console: Console) -> Iterator[None]:
    """Show what a study says before it starts: where its basis goes and how large it is."""

    class Show(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            console.print(record.getMessage(), highlight=False, markup=False, soft_wrap=True)

    handler = Show()
    level = LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        LOG.setLevel(level)


@contextmanager
def _bar(console: Console, name: str) -> Iterator[Report]:
    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(
        TextColumn(name), *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(name, total=1)
        yield lambda done, total: progress.update(task, completed=done, total=total)
