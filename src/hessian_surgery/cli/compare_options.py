"""The options of `compare`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from hessian_surgery.cli.choices import METHODS, PARTS
from hessian_surgery.cli.groups import COMPARISON, MODEL, OUTPUT, option
from hessian_surgery.cli.options import ConfigOptions, DryRun, Figures, GoalOptions, InputOptions, Json, Splits


@dataclass(frozen=True, kw_only=True)
class CompareOptions(GoalOptions, ConfigOptions, InputOptions):
    """The options of `compare`."""

    logits: Annotated[
        Path | None,
        option(
            MODEL, "Stored logits, .safetensors, instead of a model and its data.", "FILE", default="the model's own"
        ),
    ] = None
    methods: Annotated[
        str | None,
        option(
            COMPARISON,
            f"Methods, separated by commas: {', '.join(METHODS)}, or chains such as focal+spikes.",
            "NAMES",
            choices=METHODS,
            default="all that do not train, except operate:spikes, operate:both and, without --preset, loop",
        ),
    ] = None
    budgets: Annotated[
        str | None,
        option(
            COMPARISON,
            "Accuracies that may be given up, such as 0,0.2pp; negative: to be gained.",
            "AMOUNTS",
            default="-0.3pp,-0.1pp,0,0.2pp,0.5pp,1pp",
        ),
    ] = None
    splits: Splits = 5
    epochs: Annotated[int, option(COMPARISON, "Epochs of each training.", "N")] = 15
    part: Annotated[
        str,
        option(
            COMPARISON,
            "Images to use: all; development, a fixed half; or final, judged on the other half.",
            choices=PARTS,
        ),
    ] = "all"
    out: Annotated[
        Path | None,
        option(
            OUTPUT,
            "Folder to keep table, figure, logits, predictions and patch in.",
            "DIR",
            default="nothing is kept",
        ),
    ] = None
    dry_run: DryRun = False
    as_json: Json = False
    figures: Figures = None
