"""The options that several commands share."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from hessian_surgery.cli.choices import DATA, DATA_KINDS, LOSSES, MODELS, PLACES, PRECISIONS, PRESETS, TARGETS
from hessian_surgery.cli.groups import COMPARISON, GOAL, MACHINE, MODEL, OPERATION, OUTPUT, SPIKES, flag, option

# What stands for a network in help texts.
NETWORK = f"[{'|'.join(MODELS)}|hf:DIR|timm:NAME|torchvision:NAME|MODULE:FACTORY]"

Json: TypeAlias = Annotated[bool, flag(OUTPUT, "Print one JSON object on stdout, and nothing else.", "--json")]
Seed: TypeAlias = Annotated[int, option(MACHINE, "Seed of every random draw.", "N", minimum=0)]
DryRun: TypeAlias = Annotated[bool, flag(OUTPUT, "Show what the run would cost, and stop.", "--dry-run")]
Figures: TypeAlias = Annotated[
    Path | None, option(OUTPUT, "Write the figures to this folder too, as SVG and PNG.", "DIR", default="nowhere")
]
RunFolder: TypeAlias = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")]
OutputFile: TypeAlias = Annotated[Path, option(OUTPUT, "File or folder to write; it must not exist.", "PATH")]
Patch: TypeAlias = Annotated[Path, typer.Argument(metavar="PATCH", help="The patch.safetensors of a run.")]
Splits: TypeAlias = Annotated[int, option(COMPARISON, "How many times the images are split into halves.", "N")]
Budget: TypeAlias = Annotated[
    str | None,
    option(GOAL, "Overall accuracy that may be given up: 0.5pp, 0.5% or 0.005.", "AMOUNT", default="0.2pp"),
]
Loss: TypeAlias = Annotated[
    str | None,
    option(SPIKES, "Loss that the model was trained with.", choices=LOSSES, default="cross-entropy"),
]


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """Which model, and which data."""

    model: Annotated[
        str | None,
        option(MODEL, "The network.", NETWORK, choices=MODELS, default="the demo's, with --data digits"),
    ] = None
    checkpoint: Annotated[
        Path | None,
        option(
            MODEL,
            "Weights file: .safetensors, or .pt, .pth or .th with weights only.",
            "FILE",
            default="your factory's own weights",
        ),
    ] = None
    data: Annotated[
        str | None,
        option(
            MODEL,
            f"Source of all images: {DATA}.",
            "SOURCE",
            choices=DATA_KINDS,
            default="none; then give each part",
        ),
    ] = None
    training_data: Annotated[
        str | None,
        option(
            MODEL,
            "Images that the model was trained on.",
            "SOURCE",
            choices=DATA_KINDS,
            default="--data's train part",
        ),
    ] = None
    calibration_data: Annotated[
        str | None,
        option(
            MODEL, "Images to make decisions on.", "SOURCE", choices=DATA_KINDS, default="half of --data's test part"
        ),
    ] = None
    heldout_data: Annotated[
        str | None,
        option(
            MODEL,
            "Images to measure the result on.",
            "SOURCE",
            choices=DATA_KINDS,
            default="the other half of --data's test part",
        ),
    ] = None
    image_size: Annotated[
        int | None,
        option(MODEL, "Resize images to squares with this side.", "PIXELS", default="the images' own size", minimum=1),
    ] = None
    mean: Annotated[
        str | None,
        option(
            MODEL, "Channel means, such as 0.49,0.48,0.45.", "R,G,B", default="the checkpoint's, else no normalisation"
        ),
    ] = None
    std: Annotated[
        str | None, option(MODEL, "Channel standard deviations, with --mean.", "R,G,B", default="the checkpoint's")
    ] = None
    device: Annotated[
        str | None,
        option(
            MACHINE, "cpu, cuda, cuda:1, …", "NAME", choices=("cpu", "cuda"), default="cuda if there is one, else cpu"
        ),
    ] = None
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class ModelOptions(InputOptions):
    """Which model (required), and which data."""

    # Without `field` the inherited default would make --model optional.
    model: Annotated[str, option(MODEL, "The network.", NETWORK, choices=MODELS)] = field()


@dataclass(frozen=True, kw_only=True)
class SpikeOptions:
    """How many spikes are sought, and in what memory."""

    spikes: Annotated[
        int | None,
        option(
            SPIKES,
            "How many spikes (outlier Hessian eigenvectors) to find.",
            "K",
            default="C − 1 for C classes, at most 99",
        ),
    ] = None
    micro_batch: Annotated[
        int | None,
        option(SPIKES, "Process the Hessian batch in parts of this size, to save memory.", "N", default="all at once"),
    ] = None
    basis: Annotated[
        str | None,
        option(SPIKES, "Where the Lanczos basis is kept; disk is in TMPDIR.", choices=PLACES, default="auto"),
    ] = None
    precision: Annotated[str | None, option(SPIKES, "How the basis is stored.", choices=PRECISIONS, default="auto")] = (
        None
    )
    basis_memory: Annotated[
        float | None, option(SPIKES, "Room that the basis may take.", "GB", default="what is free")
    ] = None
    loss: Loss = None
    parameters: Annotated[
        str | None, option(OPERATION, "Weights that may move, by name, such as 'layer4.*'.", "GLOB", default="all")
    ] = None


@dataclass(frozen=True, kw_only=True)
class SearchOptions(SpikeOptions):
    """How spikes are sought: on how many images, in how many steps."""

    lanczos_steps: Annotated[
        int | None,
        option(SPIKES, "The exact number of Lanczos steps.", "M", default="until the spikes converge"),
    ] = None
    hessian_samples: Annotated[
        int | None,
        option(SPIKES, "Images in the Hessian batch.", "N", default="256; 128 in spectrum and study"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ConfigOptions(SearchOptions):
    """The algorithm, and what every algorithm needs."""

    preset: Annotated[
        str,
        option(
            OPERATION,
            "The algorithm: default; loop, the paper's with our settings; or the paper's with its own: "
            f"{', '.join(PRESETS[2:])}.",
            "[default|loop|paper|paper:…]",
            choices=PRESETS,
        ),
    ] = "default"
    batch_size: Annotated[int | None, option(MACHINE, "Images per forward pass.", "N", default="by trial")] = None


@dataclass(frozen=True, kw_only=True)
class GoalOptions:
    """What to improve, what to protect, and at what price."""

    target: Annotated[
        str | None,
        option(
            GOAL,
            "sigma (σ, the spread of class accuracies), worst (the worst class), or accuracies to reach, such as "
            "cat=80%,dog=75%.",
            f"[{'|'.join(TARGETS)}|CLASS=ACCURACY,…]",
            choices=TARGETS,
            default="sigma",
        ),
    ] = None
    protect: Annotated[
        str | None,
        option(GOAL, "Classes to protect, such as ship,truck.", "NAMES", default="those above the mean accuracy"),
    ] = None
    max_drop: Annotated[
        str | None,
        option(
            GOAL,
            "Accuracy that a protected class may lose, such as 2pp.",
            "AMOUNT",
            default="σ, at most 10pp; 1pp in a loop",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class StudyOptions(SpikeOptions, ModelOptions):
    """What every study takes."""

    tolerance: Annotated[
        float | None, option(SPIKES, "Relative residual at which a spike has converged.", "X", default="0.01")
    ] = None
    out: Annotated[Path, option(OUTPUT, "Folder for the JSON and the figure.", "DIR")] = Path("runs/study")
    as_json: Json = False
