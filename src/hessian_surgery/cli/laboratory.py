"""The studies as commands run them: by name, with the options that each takes, a bar, a JSON and a figure."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hessian_surgery.cli.inputs import Opened
from hessian_surgery.cli.output import notes, print_json, print_notes
from hessian_surgery.errors import InputError
from hessian_surgery.files import write_json
from hessian_surgery.model.losses import make_loss
from hessian_surgery.operation.operate import environment
from hessian_surgery.report.figure_style import save_figure
from hessian_surgery.studies import bulk_walk, effective_rank, linearization, spectrum, stability
from hessian_surgery.studies.setting import LOG, Seeking
from hessian_surgery.types import Progress as Report

# From what commands call the options for seeking spikes to what `Seeking` calls them: a study may have `--steps` of its
# own, a walk's.
RENAMED = {"samples": "hessian_samples", "steps": "lanczos_steps"}
SEEKING = {RENAMED.get(field.name, field.name): field.name for field in fields(Seeking)}


@dataclass(frozen=True)
class Study:
    """A study as commands know it.

    Attributes:
        function: takes the model, the data, how spikes are sought, and options of its own.
        module: draws and describes the result.
        needs: the parts of the data that it uses.
        without: options for seeking spikes that it has no use for.
    """

    function: Callable[..., Any]
    module: ModuleType
    needs: tuple[str, ...] = ("training", "calibration")
    without: tuple[str, ...] = ()


STUDIES = {
    "spectrum": Study(spectrum.spectrum_study, spectrum, needs=("training",)),
    "stability": Study(
        stability.stability, stability, needs=("training",), without=("hessian_samples", "lanczos_steps")
    ),
    "bulk-walk": Study(bulk_walk.bulk_walk, bulk_walk),
    "linearization": Study(linearization.linearization, linearization),
    "effective-rank": Study(effective_rank.effective_rank_study, effective_rank),
}


def find_study(name: str) -> Study:
    """The study of a name."""
    if name not in STUDIES:
        raise InputError(f"name: got {name!r}; give one of {', '.join(STUDIES)}")
    return STUDIES[name]


def study_options(given: dict[str, Any], *own: str) -> dict[str, Any]:
    """Of a command's options those that were given for seeking spikes, and the study's `own`."""
    options = {key: given[key] for key in (*SEEKING, *own) if given[key] is not None}
    pointless = next((key for key in ("density_steps", "probes") if key in options), None)
    if pointless is not None and not given["density"]:
        option = f"--{pointless.replace('_', '-')}"
        raise InputError(f"{pointless}: --no-density has no use for it; leave out {option} or --no-density")
    return options


def conduct(name: str, opened: Opened, options: dict[str, Any], folder: Path, as_json: bool) -> Any:
    """Run a study, write its files and say what it found; returns its result."""
    print_notes(opened.remarks)
    result = run_study(name, opened, options, notes())
    content = write_study(name, result, opened, options["seed"], folder)
    if as_json:
        print_json(content)
    else:
        print(find_study(name).module.describe(result))
    notes().print(f"{name}.json and {name}.svg: {folder}", highlight=False)
    return result


def run_study(name: str, opened: Opened, options: dict[str, Any], console: Console) -> Any:
    """Run a study with options as `study_options` gives them; one that it does not take is refused."""
    study = find_study(name)
    given, takes = dict(options), signature(study.function).parameters
    foreign = next((key for key in given if key in study.without or key not in SEEKING.keys() | takes.keys()), None)
    if foreign is not None:
        raise InputError(f"{foreign}: {name} has no such option; leave out --{foreign.replace('_', '-')}")
    if "loss" in given:
        given["loss"] = make_loss(given["loss"], opened.parts.training.counts)
    sought = {SEEKING[key]: given.pop(key) for key in SEEKING.keys() & given.keys()}
    seeking = replace(takes["seeking"].default, **sought)
    images = [getattr(opened.parts, part) for part in study.needs]
    with _bar(console, name) as progress, _remarks(console):
        return study.function(opened.model, *images, seeking, progress=progress, **given)


def write_study(name: str, result: Any, opened: Opened, seed: int, folder: Path) -> dict[str, Any]:
    """Write `NAME.json`, `NAME.svg` and `NAME.png`; returns the contents of the first."""
    content = {
        "study": name,
        "seed": seed,
        "inputs": opened.given,
        **result.as_dict(),
        "environment": environment(opened.classifier.device),
    }
    figure = find_study(name).module.draw(result)
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

    handler, level = Show(), LOG.level
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
