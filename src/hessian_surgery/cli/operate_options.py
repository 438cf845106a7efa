"""The options of `operate`."""

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
class OperateOptions(ConfigOptions, ModelOptions):
    """The options of `operate`."""

    out: Annotated[Path, typer.Option(help="Run folder to write; it must not hold another run.")] = Path("runs/operate")
    resume: Annotated[bool, typer.Option("--resume", help="Continue the unfinished run in --out, if any.")] = False
    as_json: Json = False
    dry_run: DryRun = False
    folds: Annotated[
        int | None,
        typer.Option(
            help="For few images: hold none out; operate on all, and once more without each of F folds, to judge "
            "each image by an operation that did not see it."
        ),
    ] = None
    target: Annotated[
        str | None,
        typer.Option(
            help="What to improve: sigma (σ, the spread of class accuracies), worst (the worst class), or accuracies "
            "such as cat=0.8,dog=0.75; by default sigma."
        ),
    ] = None
    protect: Annotated[
        str | None,
        typer.Option(help="Classes to protect, such as ship,truck; by default those above the mean accuracy."),
    ] = None
    max_drop: Annotated[
        float | None,
        typer.Option(
            help="Accuracy that a protected class may lose, as a fraction; by default σ, at most 0.1; 0.01 in a loop."
        ),
    ] = None
    classes_of_interest: Annotated[
        str | None,
        typer.Option(
            help="Classes that get directions of their own, such as cat,dog, where there are so many that others "
            "share one."
        ),
    ] = None
    budget: Annotated[
        float | None, typer.Option(help="Overall accuracy that may be given up, as a fraction; by default 0.002.")
    ] = None
    directions: Annotated[
        str | None,
        typer.Option(
            help="What to move along, besides biases: class-gradients, spikes or both; by default class-gradients."
        ),
    ] = None
    iterations: Annotated[
        int | None, typer.Option(help="Maximum number of iterations; by default 1, or 15 per phase in a loop.")
    ] = None
    phases: Annotated[
        int | None, typer.Option(help="Loop only: how many phases, each with the next K spikes; by default 1.")
    ] = None
    sensitivity: Annotated[
        str | None,
        typer.Option(
            help="Loop only: how the effect of spikes on classes is measured: gradients, or differences (2K passes); "
            "by default gradients."
        ),
    ] = None
    amplitude: Annotated[
        float | None, typer.Option(help="Loop only: length of the first step; by default set from the curvature.")
    ] = None
    control: Annotated[
        str | None,
        typer.Option(help="Loop only: how the length of later steps adapts: gamma or adam; by default gamma."),
    ] = None
    bound: Annotated[
        str | None,
        typer.Option(help="Loop only: bound on a step: ball, or box with a bound for each spike; by default ball."),
    ] = None
    exponent: Annotated[
        str | None,
        typer.Option(help="Loop only: a class counts by its error to the power p: give p, or auto; by default 2."),
    ] = None
    accept: Annotated[
        Path | None,
        typer.Option(help="TOML file of criteria for the held-out images; if one is not met, the exit code is 3."),
    ] = None
    figures: Figures = None
