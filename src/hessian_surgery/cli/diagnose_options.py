"""The options of `diagnose`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from hessian_surgery.cli.options import (
    ConfigOptions,
    DryRun,
    Figures,
    Json,
    ModelOptions,
)


@dataclass(frozen=True, kw_only=True)
class DiagnoseOptions(ConfigOptions, ModelOptions):
    """The options of `diagnose`."""

    as_json: Json = False
    dry_run: DryRun = False
    sensitivity: Annotated[
        str | None,
        typer.Option(help="How S is measured: gradients, or differences (2K passes); by default gradients."),
    ] = None
    epsilon: Annotated[
        float | None, typer.Option(help="Length of the probe; by default the amplitude that the loop starts with.")
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to keep report.html and diagnosis.json in; by default nothing is kept."),
    ] = None
    figures: Figures = None
