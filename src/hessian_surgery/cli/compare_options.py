"""The options of `compare`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from hessian_surgery.cli.choices import METHODS
from hessian_surgery.cli.options import (
    ConfigOptions,
    Figures,
    InputOptions,
    Json,
    Splits,
)

METHODS_HELP = (
    f"Methods, separated by commas: {', '.join(METHODS)}, or chains such as focal+spikes; "
    "by default all that do not train, except operate:spikes and operate:both."
)


@dataclass(frozen=True, kw_only=True)
class CompareOptions(ConfigOptions, InputOptions):
    """The options of `compare`."""

    logits: Annotated[
        Path | None, typer.Option(help="Stored logits, .safetensors, instead of a model and its data.")
    ] = None
    methods: Annotated[str | None, typer.Option(help=METHODS_HELP)] = None
    splits: Splits = 5
    budgets: Annotated[
        str | None,
        typer.Option(
            help="Accuracies that may be given up, in pp; by default -0.3,-0.1,0,0.2,0.5,1 (negative: gained)."
        ),
    ] = None
    epochs: Annotated[int, typer.Option(help="Epochs of each training.")] = 15
    part: Annotated[
        str,
        typer.Option(help="Images to use: all; development, a fixed half; or final, judged on the other half."),
    ] = "all"
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to keep table, figure, logits, predictions and patch in; by default nothing is."),
    ] = None
    as_json: Json = False
    figures: Figures = None
