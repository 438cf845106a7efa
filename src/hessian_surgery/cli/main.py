"""The command line. Exit codes: 0 done, 2 bad input, 3 not accepted, 1 any other error."""

import sys
from typing import Annotated

import typer
from rich.markup import escape

from hessian_surgery.cli.card import CardOptions, card
from hessian_surgery.cli.command import add_command
from hessian_surgery.cli.compare import CompareOptions, compare
from hessian_surgery.cli.demo import DemoOptions, demo
from hessian_surgery.cli.diagnose import DiagnoseOptions, diagnose
from hessian_surgery.cli.operate import OperateOptions, operate
from hessian_surgery.cli.output import notes
from hessian_surgery.cli.patch import ApplyOptions, RevertOptions, apply, revert
from hessian_surgery.cli.predictors import PredictorsOptions, study_predictors
from hessian_surgery.cli.report import ReportOptions, report
from hessian_surgery.cli.spectrum import SpectrumOptions, spectrum
from hessian_surgery.cli.study import (
    BulkWalkOptions,
    ProbeOptions,
    StabilityOptions,
    study_bulk_walk,
    study_effective_rank,
    study_linearization,
    study_stability,
)
from hessian_surgery.errors import InputError
from hessian_surgery.version import __version__


def make_app(text: str) -> typer.Typer:
    """Make an empty group of commands."""
    return typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help=text,
    )


app = make_app(
    "Lift the weak classes of a trained classifier by a small step in weight space, and protect the strong ones."
)
studies = make_app("Run one of the paper's experiments on a classifier; its weights do not change.")


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


add_command(app, DemoOptions)(demo)
add_command(app, OperateOptions)(operate)
add_command(app, DiagnoseOptions)(diagnose)
add_command(app, SpectrumOptions)(spectrum)
app.add_typer(studies, name="study")
add_command(studies, StabilityOptions, "stability")(study_stability)
add_command(studies, BulkWalkOptions, "bulk-walk")(study_bulk_walk)
add_command(studies, ProbeOptions, "linearization")(study_linearization)
add_command(studies, ProbeOptions, "effective-rank")(study_effective_rank)
add_command(studies, PredictorsOptions, "predictors")(study_predictors)
add_command(app, CompareOptions)(compare)
add_command(app, ReportOptions)(report)
add_command(app, CardOptions)(card)
add_command(app, ApplyOptions)(apply)
add_command(app, RevertOptions)(revert)


def main() -> None:
    """Run the command line. Bad input gives one line on stderr and exit code 2."""
    try:
        app()
    except InputError as error:
        notes().print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
