"""The options of `spectrum` and of the studies."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from hessian_surgery.cli.choices import NETS, PREDICTED
from hessian_surgery.cli.options import (
    InputOptions,
    Json,
    Loss,
    SearchOptions,
    Splits,
    StudyOptions,
)


@dataclass(frozen=True, kw_only=True)
class SpectrumOptions(SearchOptions, StudyOptions):
    """The options of `spectrum`."""

    out: Annotated[Path, typer.Option(help="Folder for the JSON and the figure.")] = Path("runs/spectrum")
    operator: Annotated[
        str | None, typer.Option(help="The curvature: hessian or gauss-newton; by default hessian.")
    ] = None
    density: Annotated[bool, typer.Option(help="Find the density of all eigenvalues too.")] = True
    density_steps: Annotated[
        int | None, typer.Option(help="Lanczos steps for each probe of the density; by default 90.")
    ] = None
    probes: Annotated[int | None, typer.Option(help="Probes of the density; by default 10.")] = None
    vectors: Annotated[bool, typer.Option("--vectors", help="Write the eigenvectors too.")] = False


@dataclass(frozen=True, kw_only=True)
class StabilityOptions(StudyOptions):
    """The options of `study stability`."""

    steps: Annotated[
        int | None, typer.Option(help="Lanczos steps of the runs that take a fixed number; by default 10.")
    ] = None
    sizes: Annotated[
        str | None, typer.Option(help="Batch sizes; by default 64,128,256,512, up to the number of images.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class BulkWalkOptions(SearchOptions, StudyOptions):
    """The options of `study bulk-walk`."""

    steps: Annotated[int | None, typer.Option(help="Steps of a walk; by default 20.")] = None
    length: Annotated[float | None, typer.Option(help="Length of a step; by default 0.1.")] = None


@dataclass(frozen=True, kw_only=True)
class ProbeOptions(SearchOptions, StudyOptions):
    """The options of `study linearization` and `study effective-rank`."""

    epsilon: Annotated[float | None, typer.Option(help="Length of the probe; by default 0.01.")] = None


@dataclass(frozen=True, kw_only=True)
class PredictorsOptions(InputOptions):
    """The options of `study predictors`."""

    model: Annotated[
        str | None, typer.Option(help="A network of your own, as for operate; by default small nets are trained.")
    ] = None
    data: Annotated[
        str | None, typer.Option(help="Data of that network, or to train the small nets on; by default digits.")
    ] = None
    loss: Loss = None
    diagnosis: Annotated[
        list[Path] | None, typer.Option(help="File of what diagnose --json printed; give it with --comparison.")
    ] = None
    comparison: Annotated[
        list[Path] | None, typer.Option(help="File of what compare --json printed for the same model.")
    ] = None
    earlier: Annotated[
        list[Path] | None, typer.Option("--with", help="A predictors.json about other models, to join.")
    ] = None
    method: Annotated[str, typer.Option(help="Method of compare whose gain is predicted.")] = PREDICTED
    nets: Annotated[int, typer.Option(help="How many small nets to train; 0 for none.")] = NETS
    per_class: Annotated[
        int | None, typer.Option(help="Use at most this many images of a class; by default all.", min=2)
    ] = None
    splits: Splits = 5
    out: Annotated[Path, typer.Option(help="Folder for the tables and the figure.")] = Path("runs/predictors")
    as_json: Json = False
