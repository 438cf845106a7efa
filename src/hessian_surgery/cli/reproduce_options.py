"""The options of `reproduce`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from hessian_surgery.cli.choices import DATA, DATA_KINDS, ITEMS, MODELS
from hessian_surgery.cli.groups import MACHINE, MODEL, OUTPUT, STUDY, flag, option
from hessian_surgery.cli.options import NETWORK, Json


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """The options of `reproduce`."""

    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help=f"all, or some of {', '.join(ITEMS)}  [default: none]", show_default=False
        ),
    ] = None
    listed: Annotated[bool, flag(STUDY, "List all items, and stop.", "--list")] = False
    sources: Annotated[
        Path | None,
        option(
            MODEL,
            "Folder with cifar10, cifar100, isic2019 or ham10000, and MODEL-SET.safetensors of each.",
            "DIR",
            default="none; give --data and --checkpoint",
        ),
    ] = None
    data: Annotated[
        str | None,
        option(
            MODEL,
            f"Data for items on one data set: {DATA}.",
            "SOURCE",
            choices=DATA_KINDS,
            default="the one in --sources",
        ),
    ] = None
    checkpoint: Annotated[
        Path | None, option(MODEL, "Weights of the network.", "FILE", default="the one in --sources")
    ] = None
    model: Annotated[str, option(MODEL, "The network.", NETWORK, choices=MODELS)] = "resnet50"
    splits: Annotated[
        int | None,
        option(STUDY, "At most so many halvings of the test images.", "N", default="each item's own", minimum=1),
    ] = None
    quick: Annotated[bool, flag(STUDY, "Try every item on digits, in seconds.", "--quick")] = False
    out: Annotated[Path, option(OUTPUT, "Folder for JSON, pages and figures; a second run goes on there.", "DIR")] = (
        Path("runs/reproduce")
    )
    as_json: Json = False
    processes: Annotated[int, option(MACHINE, "How many processes share the work and the device.", "N", minimum=1)] = 1
    device: Annotated[
        str | None,
        option(
            MACHINE, "cpu, cuda, cuda:1, …", "NAME", choices=("cpu", "cuda"), default="cuda if there is one, else cpu"
        ),
    ] = None
