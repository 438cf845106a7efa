"""The options that several commands share, in groups."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from hessian_surgery.cli.choices import DATA, HESSIAN_SAMPLES, TOLERANCE

Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else.")]
Seed: TypeAlias = Annotated[int, typer.Option(help="Seed of every random draw.", min=0)]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Show what the run would cost, and stop.")]
Figures: TypeAlias = Annotated[Path | None, typer.Option(help="Write the figures to this folder too, as SVG and PNG.")]
RunFolder: TypeAlias = Annotated[Path, typer.Argument(help="Folder of a finished run.")]
OutputFile: TypeAlias = Annotated[Path, typer.Option(help="File to write; it must not exist.")]
Patch: TypeAlias = Annotated[Path, typer.Argument(help="The patch.safetensors of a run.")]
Splits: TypeAlias = Annotated[int, typer.Option(help="How many times the images are split into halves.")]
Model: TypeAlias = Annotated[
    str, typer.Option(help="The network: resnet18, resnet34, resnet50, smallnet, or package.module:factory.")
]
Loss: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Loss that the model was trained with: cross-entropy, focal or class-balanced; by default cross-entropy."
    ),
]


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """Which model, and which data."""

    model: Annotated[
        str | None, typer.Option(help="The network, as for operate; by default the demo's, with --data digits.")
    ] = None
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Weights file: .safetensors, .pt or .pth; by default your factory's own weights."),
    ] = None
    data: Annotated[str | None, typer.Option(help=f"Source of all images: {DATA}.")] = None
    training_data: Annotated[
        str | None, typer.Option(help="Images that the model was trained on; by default --data's train part.")
    ] = None
    calibration_data: Annotated[
        str | None, typer.Option(help="Images to make decisions on; by default half of --data's test part.")
    ] = None
    heldout_data: Annotated[
        str | None,
        typer.Option(help="Images to measure the result on; by default the other half of --data's test part."),
    ] = None
    image_size: Annotated[
        int | None,
        typer.Option(help="Resize images to squares with this side, in pixels; by default no resizing.", min=1),
    ] = None
    mean: Annotated[
        str | None, typer.Option(help="Channel means, such as 0.49,0.48,0.45; by default the checkpoint's.")
    ] = None
    std: Annotated[str | None, typer.Option(help="Channel standard deviations; by default the checkpoint's.")] = None
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, …; by default cuda if there is one, else cpu.")
    ] = None
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class ModelOptions(InputOptions):
    """Which model (required), and which data."""

    # Without `field` the inherited default would make --model optional.
    model: Model = field()


@dataclass(frozen=True, kw_only=True)
class SpikeOptions:
    """How many spikes are sought, and in what memory."""

    spikes: Annotated[
        int | None,
        typer.Option(help="K, how many spikes (outlier Hessian eigenvectors) to find; by default C − 1 for C classes."),
    ] = None
    micro_batch: Annotated[
        int | None,
        typer.Option(help="Process the Hessian batch in parts of this size, to save memory; by default all at once."),
    ] = None
    basis: Annotated[
        str | None,
        typer.Option(help="Where the Lanczos basis is kept: auto, device, host or disk (TMPDIR); by default auto."),
    ] = None
    precision: Annotated[
        str | None, typer.Option(help="How the basis is stored: auto, full or bfloat16; by default auto.")
    ] = None
    basis_memory: Annotated[
        float | None, typer.Option(help="GB that the basis may take; by default all that is free.")
    ] = None
    loss: Loss = None
    parameters: Annotated[
        str | None, typer.Option(help="Weights that may move: a glob of names such as 'layer4.*'; by default all.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class SearchOptions(SpikeOptions):
    """How spikes are sought: on how many images, in how many steps."""

    lanczos_steps: Annotated[
        int | None, typer.Option(help="m, the exact number of Lanczos steps; by default until the spikes converge.")
    ] = None
    hessian_samples: Annotated[
        int | None,
        typer.Option(
            help=f"n, images in the Hessian batch; by default {HESSIAN_SAMPLES}, or 128 in spectrum and study."
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ConfigOptions(SearchOptions):
    """The algorithm, and what every algorithm needs."""

    preset: Annotated[
        str,
        typer.Option(
            help="The algorithm: default; loop (the paper's, with our settings); or, with the paper's settings, "
            "paper, paper:cifar100, paper:isic, paper:isic/focal, paper:isic/class-balanced."
        ),
    ] = "default"
    batch_size: Annotated[int | None, typer.Option(help="Images per forward pass; by default by trial.")] = None


@dataclass(frozen=True, kw_only=True)
class StudyOptions(SpikeOptions, ModelOptions):
    """What every study takes."""

    tolerance: Annotated[
        float | None,
        typer.Option(help=f"Relative residual at which a spike has converged; by default {TOLERANCE}."),
    ] = None
    out: Annotated[Path, typer.Option(help="Folder for the JSON and the figure.")] = Path("runs/study")
    as_json: Json = False
