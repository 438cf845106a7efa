"""The options of `train`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from hessian_surgery.cli.choices import DATA_KINDS, LOSSES
from hessian_surgery.cli.groups import MODEL, OUTPUT, TRAINING, option
from hessian_surgery.cli.options import Json, ModelOptions

# Short for the first of the losses.
SHORT_LOSS = "ce"


@dataclass(frozen=True, kw_only=True)
class TrainOptions(ModelOptions):
    """The options of `train`."""

    checkpoint: Annotated[
        Path | None, option(MODEL, "Weights file to start from.", "FILE", default="random weights, from the seed")
    ] = None
    training_data: Annotated[
        str | None,
        option(MODEL, "Images to train on.", "SOURCE", choices=DATA_KINDS, default="--data's train part"),
    ] = None
    heldout_data: Annotated[
        str | None,
        option(
            MODEL, "Images to measure the result on.", "SOURCE", choices=DATA_KINDS, default="--data's whole test part"
        ),
    ] = None
    mean: Annotated[
        str | None,
        option(
            MODEL,
            "Channel means, such as 0.49,0.48,0.45.",
            "R,G,B",
            default="--checkpoint's, else those of the training images",
        ),
    ] = None
    std: Annotated[
        str | None, option(MODEL, "Channel standard deviations, with --mean.", "R,G,B", default="as for --mean")
    ] = None
    loss: Annotated[
        str, option(TRAINING, "The loss; ce is short for cross-entropy.", choices=(SHORT_LOSS, *LOSSES))
    ] = LOSSES[0]
    epochs: Annotated[int, option(TRAINING, "Passes over the training images.", "N")] = 60
    learning_rate: Annotated[
        float, option(TRAINING, "The highest learning rate; it falls to 0 along half a cosine.", "X")
    ] = 0.05
    batch_size: Annotated[int, option(TRAINING, "Images of a step.", "N")] = 128
    shift: Annotated[
        int | None,
        option(
            TRAINING,
            "Shift each image by up to so many pixels, at random.",
            "PIXELS",
            default="an eighth of the side of images from files, else 0",
        ),
    ] = None
    flip: Annotated[
        bool | None,
        typer.Option(
            help="Mirror half of the images, at random.  [default: on for images from files]",
            show_default=False,
            rich_help_panel=TRAINING,
        ),
    ] = None
    out: Annotated[
        Path, option(OUTPUT, "File to write, .safetensors; it must not exist. Give the command again to go on.", "FILE")
    ] = Path("runs/train/model.safetensors")
    as_json: Json = False
