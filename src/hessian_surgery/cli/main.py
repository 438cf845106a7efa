"""The command line. Exit codes: 0 done, 2 bad input, 3 not accepted, 1 other errors."""

import io
import os
import signal
import sys
import time
from typing import Annotated, TypeAlias

import typer

from hessian_surgery.cli.command import add_command, check_arguments
from hessian_surgery.cli.compare_options import CompareOptions
from hessian_surgery.cli.diagnose_options import DiagnoseOptions
from hessian_surgery.cli.operate_options import OperateOptions
from hessian_surgery.cli.reproduce_options import ReproduceOptions
from hessian_surgery.cli.run_options import (
    ApplyOptions,
    CardOptions,
    DemoOptions,
    ExportOptions,
    ReportOptions,
    RevertOptions,
)
from hessian_surgery.cli.study_options import (
    BulkWalkOptions,
    LinearizationOptions,
    PredictorsOptions,
    ProbeOptions,
    SpectrumOptions,
    StabilityOptions,
)
from hessian_surgery.cli.train_options import TrainOptions
from hessian_surgery.errors import InputError, RankLost
from hessian_surgery.plain_text import message, reason
from hessian_surgery.ranks import Ranks, acting, launched
from hessian_surgery.terminal import SafeConsole, safe
from hessian_surgery.version import __version__

# Commands whose work the ranks of a `torchrun` share.
SHARED = ("demo", "operate", "diagnose", "compare", "spectrum", "reproduce")
# Seconds that other ranks wait before they tell of an error: the first may tell of the same one,
# and `torchrun` then ends the others.
GRACE = 3.0
# Name, options, where the function is, help text.
Row: TypeAlias = tuple[str, type, str, str]
COMMANDS: tuple[Row, ...] = (
    ("demo", DemoOptions, "demo:demo", "Train a small net on long-tailed, noisy digits and operate on it, in seconds."),
    (
        "operate",
        OperateOptions,
        "operate:operate",
        "Operate on a classifier; write the patched model, the patch and the evidence.",
    ),
    (
        "diagnose",
        DiagnoseOptions,
        "diagnose:diagnose",
        "Show whether there is anything to gain by operating; the model does not change.",
    ),
    (
        "compare",
        CompareOptions,
        "compare:compare",
        "Compare the operation with simpler methods at equal accuracy, and advise which to use.",
    ),
    (
        "report",
        ReportOptions,
        "report:report",
        "Show a finished run; every statistic is computed again from the stored predictions.",
    ),
    ("card", CardOptions, "card:card", "Print a model card for the patched model, in Hugging Face's format."),
    ("apply", ApplyOptions, "patch:apply", "Patch a checkpoint file."),
    ("revert", RevertOptions, "patch:revert", "Get the original checkpoint file back, byte for byte."),
    (
        "export",
        ExportOptions,
        "export:export",
        "Write a run's patched model as an ONNX or torch.export file, and compare their answers.",
    ),
    ("train", TrainOptions, "train:train", "Train a classifier from scratch, to operate on, and write its weights."),
    (
        "spectrum",
        SpectrumOptions,
        "spectrum:spectrum",
        "Find leading eigenvalues with residuals, and the spectral density, of the loss curvature.",
    ),
    (
        "reproduce",
        ReproduceOptions,
        "reproduce:reproduce",
        "Make the paper's tables and figures again, beside the paper's numbers.",
    ),
)
STUDIES: tuple[Row, ...] = (
    (
        "stability",
        StabilityOptions,
        "study:study_stability",
        "Find how much spikes depend on the Hessian batch and on the number of Lanczos steps.",
    ),
    (
        "bulk-walk",
        BulkWalkOptions,
        "study:study_bulk_walk",
        "Walk in the bulk, along the spikes and at random, and compare what happens to the loss.",
    ),
    (
        "linearization",
        LinearizationOptions,
        "study:study_linearization",
        "Compare predicted changes of class accuracy with measured ones, at many step lengths.",
    ),
    (
        "effective-rank",
        ProbeOptions,
        "study:study_effective_rank",
        "Find how many independent exchanges S offers, and how much of that is noise.",
    ),
    (
        "predictors",
        PredictorsOptions,
        "predictors:study_predictors",
        "Relate what diagnose finds to the gain that compare measures, over many models.",
    ),
)


def make_app(text: str, completion: bool) -> typer.Typer:
    """Make an empty group of commands; the outermost one installs the shell's completion."""
    return typer.Typer(
        no_args_is_help=True,
        add_completion=completion,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help=text,
    )


app = make_app(
    "Lift the weak classes of a trained classifier by a small step in weight space, and protect the strong ones.",
    completion=True,
)
studies = make_app("Run one of the paper's experiments on a classifier.", completion=False)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"hessian-surgery {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Lift the weak classes of a trained classifier by a small step in weight space."""


for row in COMMANDS:
    add_command(app, *row, shared=row[0] in SHARED)
for row in STUDIES:
    add_command(studies, *row)
app.add_typer(studies, name="study")


def main() -> None:
    """Run the command line. Bad input gives one line on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may not know every letter
            stream.reconfigure(errors="backslashreplace")
    asked_to_end = []

    def end(*_: object) -> None:
        # As after Ctrl-C: locks and half-written files go, and a note says how to go on.
        asked_to_end.append(signal.SIGTERM)
        raise KeyboardInterrupt

    with acting(launched() or Ranks()) as ranks:
        # Other ranks have written nothing, and end at once.
        usual = signal.signal(signal.SIGTERM, end if ranks.writes else signal.SIG_DFL)
        try:
            code = _run(ranks)
            sys.stdout.flush()
        except OSError as error:
            # Nothing more can be written there, and the interpreter must not try at its end.
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (open until the end)
            code = 1 if isinstance(error, BrokenPipeError) else _say(ranks, f"no output: {reason(error)}", 1)
        finally:
            signal.signal(signal.SIGTERM, usual)
    sys.exit(128 + signal.SIGTERM if asked_to_end and code else code)


def _run(ranks: Ranks) -> int:
    """Run a command; return the exit code."""
    try:
        check_arguments(sys.argv[1:])
        return app(standalone_mode=False) or 0
    except InputError as error:
        return _say(ranks, str(error), 2)
    except RankLost as error:
        return _say(ranks, f"{error}; give the same command again to go on, operate with --resume", 1)
    except Exception as error:
        # Typer's own errors are of another class in each version; all know what to say.
        if not hasattr(error, "format_message"):
            raise
        context = getattr(error, "ctx", None)
        said = error.format_message()
        if context is not None and said == context.get_help():
            print(said, file=sys.stderr)
        else:
            place = "hessian-surgery" if context is None else context.command_path
            print(f"Try '{place} --help' for help.\nError: {message(said, 400)}", file=sys.stderr)
        return int(getattr(error, "exit_code", 2))


def _say(ranks: Ranks, text: str, code: int) -> int:
    """Tell of an error in one line; return the exit code."""
    before = ""
    if not ranks.writes:
        time.sleep(GRACE)
        before = f"rank {ranks.rank}: "
    SafeConsole(stderr=True).print(f"[bold red]error:[/] {before}{safe(text)}", highlight=False, soft_wrap=True)
    return code
