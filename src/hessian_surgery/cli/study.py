"""`hessian-surgery study NAME`: the paper's experiments, one subcommand each."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from hessian_surgery.cli.configs import choose_search
from hessian_surgery.cli.folders import Output, writing
from hessian_surgery.cli.inputs import OpenedModel, open_model
from hessian_surgery.cli.options import StudyOptions
from hessian_surgery.cli.output import notes, print_json, print_notes, print_text
from hessian_surgery.cli.study_options import BulkWalkOptions, LinearizationOptions, ProbeOptions, StabilityOptions
from hessian_surgery.data.sources import PARTS
from hessian_surgery.errors import InputError
from hessian_surgery.files import write_json
from hessian_surgery.operation.environment import environment
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.progress import ShownProgress
from hessian_surgery.operation.schedule import Expected
from hessian_surgery.parse_numbers import parse_accuracy, parse_whole_numbers
from hessian_surgery.report.figure_style import save_figure
from hessian_surgery.studies import bulk_walk, effective_rank, linearization, stability
from hessian_surgery.studies.study_inputs import LOG, SEARCH
from hessian_surgery.types import Progress

# The parts of the data that most studies use.
BOTH = ("training", "calibration")


def study_stability(options: StabilityOptions) -> None:
    """Find how much spikes depend on the Hessian batch and on the number of Lanczos steps."""
    sizes = None if options.sizes is None else parse_whole_numbers("sizes", options.sizes)
    own = {"steps": options.steps, "sizes": sizes}
    run_study("stability", stability.stability, stability, options, ("training",), own)


def study_bulk_walk(options: BulkWalkOptions) -> None:
    """Walk in the bulk, along the spikes and at random, and compare what happens to the loss."""
    own = {"steps": options.steps, "length": options.length}
    run_study("bulk-walk", bulk_walk.bulk_walk, bulk_walk, options, BOTH, own)


def study_linearization(options: LinearizationOptions) -> None:
    """Compare predicted changes of class accuracy with measured ones, at many step lengths."""
    given = options.strong_above
    own = {
        "epsilon": options.epsilon,
        "strong_above": None if given is None else parse_accuracy("strong_above", given),
    }
    run_study("linearization", linearization.linearization, linearization, options, BOTH, own)


def study_effective_rank(options: ProbeOptions) -> None:
    """Find how many independent exchanges S offers, and how much of that is noise."""
    own = {"epsilon": options.epsilon}
    run_study("effective-rank", effective_rank.effective_rank_study, effective_rank, options, BOTH, own)


def run_study(
    name: str,
    function: Callable[..., Any],
    module: ModuleType,
    options: StudyOptions,
    needs: Sequence[str],
    own: dict[str, Any],
    vectors: str | None = None,
) -> None:
    """Run a study, write its files and show what it found.

    Args:
        name: of the study, and of its files.
        function: takes the model, the data, the search and the study's own arguments.
        module: draws and describes the result.
        options: of the command.
        needs: the parts of the data that the study uses.
        own: the study's own arguments; those that are None keep their defaults.
        vectors: the file for the vectors that were found, if they are wanted.
    """
    _refuse_unused_data(name, options, needs)
    more = () if vectors is None else (vectors,)
    output = Output(f"{name} study", (*more, *(f"{name}.{kind}" for kind in ("svg", "png", "json"))), alone=False)
    output.check(options.out)
    opened = open_model(options, needs)
    with writing(options.out, output):
        result = _run(name, function, opened, options, needs, own)
        if vectors is not None:
            result.save_vectors(options.out / vectors)
        content = write_study(name, result, module, opened, options.seed, options.out)
    if options.as_json:
        print_json(content)
    else:
        print_text(module.describe(result))
    print_notes([f"{name}.json and {name}.svg: {options.out}"])


def _run(
    name: str,
    function: Callable[..., Any],
    opened: OpenedModel,
    options: StudyOptions,
    needs: Sequence[str],
    own: dict[str, Any],
) -> Any:
    """What a study finds, with its progress shown."""
    given = {key: value for key, value in own.items() if value is not None}
    with ShownProgress(notes(), opened.remarks) as observer, _log_shown(observer):
        return function(
            opened.model,
            *(getattr(opened.parts, part) for part in needs),
            choose_search(options, SEARCH),
            parameters=options.parameters or "*",
            seed=options.seed,
            progress=_told_to(observer, name),
            **given,
        )


def _told_to(observer: Observer, name: str) -> Progress:
    """Progress of a study as that of one stage, whose seconds nobody knows beforehand."""

    def report(done: int, total: int) -> None:
        if done == 0:
            observer.expect(lambda: [Expected(name, 1.0)], in_seconds=False)
        observer.stage(name, done / total, 1)

    return report


def _refuse_unused_data(name: str, options: StudyOptions, needs: Sequence[str]) -> None:
    """Raise an InputError for data that a study has no use for."""
    for part in PARTS:
        if part not in needs and getattr(options, f"{part}_data") is not None:
            raise InputError(f"{part}_data: {name} has no use for it; leave out --{part}-data")


def write_study(
    name: str, result: Any, module: ModuleType, opened: OpenedModel, seed: int, folder: Path
) -> dict[str, Any]:
    """Write `NAME.json`, `NAME.svg` and `NAME.png`; return the contents of the first."""
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


class _Shown(logging.Handler):
    """Passes log records on as remarks."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self._observer = observer

    def emit(self, record: logging.LogRecord) -> None:
        """Pass the message on."""
        self._observer.remark(record.getMessage())


@contextmanager
def _log_shown(observer: Observer) -> Iterator[None]:
    """Show what a study logs: where its basis is kept, and how large it is."""
    handler = _Shown(observer)
    level = LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        LOG.setLevel(level)
