"""The options that several commands share, in groups."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from hessian_surgery.data.sources import SPECS

Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else.")]
Seed: TypeAlias = Annotated[int, typer.Option(help="Fixes every random draw.", min=0)]
Device: TypeAlias = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …; by default cuda if there is one.")]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Show what it would cost, and stop.")]
Figures: TypeAlias = Annotated[Path | None, typer.Option(help="Also write the figures here, as SVG and PNG.")]
RunFolder: TypeAlias = Annotated[Path, typer.Argument(help="The folder of a finished run.")]
OutputFile: TypeAlias = Annotated[Path, typer.Option(help="The file to write.")]
Patch: TypeAlias = Annotated[Path, typer.Argument(help="The patch.safetensors of a run.")]
Splits: TypeAlias = Annotated[int, typer.Option(help="How often the images are split into halves.")]
Model: TypeAlias = Annotated[
    str, typer.Option(help="resnet18, resnet34, resnet50, smallnet, or package.module:factory.")
]


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """Which model, and which data."""

    model: Annotated[str | None, typer.Option("--model", help="As for operate; not needed for digits.")] = None
    checkpoint: Annotated[Path | None, typer.Option(help="Weights: .safetensors, .pt or .pth.")] = None
    data: Annotated[str | None, typer.Option(help=f"{SPECS}.")] = None
    training_data: Annotated[str | None, typer.Option(help="Training images, instead of --data's train part.")] = None
    calibration_data: Annotated[
        str | None, typer.Option(help="Images to decide on, instead of half of --data's test part.")
    ] = None
    heldout_data: Annotated[
        str | None, typer.Option(help="Images to report on, instead of half of --data's test part.")
    ] = None
    image_size: Annotated[int | None, typer.Option(help="Resize images to this side in pixels.", min=1)] = None
    mean: Annotated[str | None, typer.Option(help="Channel means, such as 0.49,0.48,0.45; else the checkpoint's.")] = (
        None
    )
    std: Annotated[str | None, typer.Option(help="Channel standard deviations; else the checkpoint's.")] = None
    device: Device = None
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class SpikeOptions:
    """How many spikes are sought, and in what memory."""

    spikes: Annotated[int | None, typer.Option(help="K; by default one fewer than the classes.")] = None
    micro_batch: Annotated[
        int | None, typer.Option(help="Stream the Hessian batch in parts of this size: less memory.")
    ] = None
    basis: Annotated[
        str | None, typer.Option(help="Where the Lanczos basis is: auto, device, host or disk (TMPDIR).")
    ] = None
    precision: Annotated[str | None, typer.Option(help="How the basis is stored: auto, full or bfloat16.")] = None
    basis_memory: Annotated[
        float | None, typer.Option(help="GB that the basis may take; less means more restarts.")
    ] = None
    loss: Annotated[str | None, typer.Option(help="cross-entropy, focal or class-balanced.")] = None
    parameters: Annotated[str | None, typer.Option(help="Glob over the weights that may move, such as 'layer4.*'.")] = (
        None
    )


@dataclass(frozen=True, kw_only=True)
class SearchOptions(SpikeOptions):
    """How spikes are sought: on how many images, in how many steps."""

    lanczos_steps: Annotated[
        int | None, typer.Option(help="m, the exact number of steps; by default until the spikes converge.")
    ] = None
    hessian_samples: Annotated[int | None, typer.Option(help="n, images in the Hessian batch.")] = None


@dataclass(frozen=True, kw_only=True)
class ConfigOptions(SearchOptions):
    """The algorithm, and what every algorithm needs."""

    preset: Annotated[
        str,
        typer.Option(
            help="default, loop (Algorithm 2 with our settings), paper, paper:cifar100, paper:isic, paper:isic/focal, "
            "paper:isic/class-balanced."
        ),
    ] = "default"
    batch_size: Annotated[int | None, typer.Option(help="Images per forward pass.")] = None


@dataclass(frozen=True, kw_only=True)
class StudyOptions(InputOptions):
    """What every study takes."""

    model: Model
    out: Annotated[Path, typer.Option(help="Folder for the JSON and the figure.")] = Path("runs/study")
    as_json: Json = False
