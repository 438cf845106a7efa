"""The options of `spectrum` and of the studies."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from hessian_surgery.cli.choices import DATA, DATA_KINDS, METHODS, MODELS, NETS, OPERATORS, PREDICTED
from hessian_surgery.cli.groups import MODEL, OUTPUT, STUDY, flag, option
from hessian_surgery.cli.options import NETWORK, InputOptions, Json, Loss, SearchOptions, Splits, StudyOptions


@dataclass(frozen=True, kw_only=True)
class SpectrumOptions(SearchOptions, StudyOptions):
    """The options of `spectrum`."""

    out: Annotated[Path, option(OUTPUT, "Folder for the JSON and the figure.", "DIR")] = Path("runs/spectrum")
    operator: Annotated[str | None, option(STUDY, "The curvature.", choices=OPERATORS, default="hessian")] = None
    density: Annotated[bool, typer.Option(help="Find the density of all eigenvalues too.", rich_help_panel=STUDY)] = (
        True
    )
    density_steps: Annotated[
        int | None, option(STUDY, "Lanczos steps for each probe of the density.", "M", default="90")
    ] = None
    probes: Annotated[int | None, option(STUDY, "Probes of the density.", "N", default="10")] = None
    vectors: Annotated[bool, flag(OUTPUT, "Write the eigenvectors too.", "--vectors")] = False


@dataclass(frozen=True, kw_only=True)
class StabilityOptions(StudyOptions):
    """The options of `study stability`."""

    steps: Annotated[
        int | None, option(STUDY, "Lanczos steps of the runs that take a fixed number.", "M", default="10")
    ] = None
    sizes: Annotated[
        str | None,
        option(STUDY, "Batch sizes.", "LIST", default="64,128,256,512, up to the number of images"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class BulkWalkOptions(SearchOptions, StudyOptions):
    """The options of `study bulk-walk`."""

    steps: Annotated[int | None, option(STUDY, "Steps of a walk.", "N", default="20")] = None
    length: Annotated[float | None, option(STUDY, "Length of a step.", "X", default="0.1")] = None


@dataclass(frozen=True, kw_only=True)
class ProbeOptions(SearchOptions, StudyOptions):
    """The options of `study effective-rank`, and some of `study linearization`."""

    epsilon: Annotated[float | None, option(STUDY, "Length of the probe.", "X", default="0.01")] = None


@dataclass(frozen=True, kw_only=True)
class LinearizationOptions(ProbeOptions):
    """The options of `study linearization`."""

    strong_above: Annotated[
        str | None,
        option(
            STUDY,
            "Protect classes above this accuracy; the paper's is 85%.",
            "ACCURACY",
            default="the mean plus one σ",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class PredictorsOptions(InputOptions):
    """The options of `study predictors`."""

    model: Annotated[
        str | None,
        option(MODEL, "A network of your own.", NETWORK, choices=MODELS, default="none; small nets are trained"),
    ] = None
    data: Annotated[
        str | None,
        option(
            MODEL,
            f"Data of that network, or to train the small nets on: {DATA}.",
            "SOURCE",
            choices=DATA_KINDS,
            default="digits, for the small nets",
        ),
    ] = None
    loss: Loss = None
    diagnosis: Annotated[
        list[Path] | None,
        option(STUDY, "File of what diagnose --json printed; give it with --comparison.", "FILE", default="none"),
    ] = None
    comparison: Annotated[
        list[Path] | None,
        option(STUDY, "File of what compare --json printed for the same model.", "FILE", default="none"),
    ] = None
    earlier: Annotated[
        list[Path] | None,
        option(STUDY, "A predictors.json about other models, to join.", "FILE", name="--with", default="none"),
    ] = None
    method: Annotated[str, option(STUDY, "Method of compare whose gain is predicted.", "NAME", choices=METHODS)] = (
        PREDICTED
    )
    nets: Annotated[int, option(STUDY, "How many small nets to train; 0 for none.", "N")] = NETS
    per_class: Annotated[
        int | None, option(STUDY, "Use at most this many images of a class.", "N", default="all", minimum=2)
    ] = None
    splits: Splits = 5
    out: Annotated[Path, option(OUTPUT, "Folder for the tables and the figure.", "DIR")] = Path("runs/predictors")
    as_json: Json = False
