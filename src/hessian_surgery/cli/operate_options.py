"""The options of `operate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from hessian_surgery.cli.choices import BOUNDS, CONTROLS, FAMILIES, SENSITIVITIES
from hessian_surgery.cli.groups import GOAL, LOOP, MODEL, OPERATION, OUTPUT, flag, option
from hessian_surgery.cli.options import Budget, ConfigOptions, DryRun, Figures, GoalOptions, Json, ModelOptions


@dataclass(frozen=True, kw_only=True)
class OperateOptions(GoalOptions, ConfigOptions, ModelOptions):
    """The options of `operate`."""

    folds: Annotated[
        int | None,
        option(
            MODEL,
            "For few images: hold none out; operate without each of F folds and judge on it; the mean of the F steps "
            "is delivered.",
            "F",
            default="no folds: images are held out",
        ),
    ] = None
    budget: Budget = None
    accept: Annotated[
        Path | None,
        option(
            GOAL,
            "TOML file of criteria for the held-out images; if one is not met, the exit code is 3.",
            "FILE",
            default="no criteria",
        ),
    ] = None
    out: Annotated[Path, option(OUTPUT, "Run folder to write; it must not hold another run.", "DIR")] = Path(
        "runs/operate"
    )
    resume: Annotated[bool, flag(OUTPUT, "Continue the unfinished run in --out, if any.", "--resume")] = False
    quick: Annotated[
        bool,
        flag(
            OPERATION,
            "A first look: moves biases alone, so no gradients are taken, and leaves out the page's explorer.",
            "--quick",
        ),
    ] = False
    dry_run: DryRun = False
    as_json: Json = False
    figures: Figures = None
    directions: Annotated[
        str | None,
        option(OPERATION, "What to move along: the head's biases, and these.", choices=FAMILIES, default="refit"),
    ] = None
    classes_of_interest: Annotated[
        str | None,
        option(
            OPERATION,
            "Classes that get directions of their own, such as cat,dog, where there are so many that others share one.",
            "NAMES",
            default="those with a target",
        ),
    ] = None
    recalibrate: Annotated[
        bool,
        flag(
            OPERATION,
            "Afterwards fit one temperature to the calibration images and fold it into the head; no prediction "
            "changes.",
            "--recalibrate",
        ),
    ] = False
    iterations: Annotated[
        int | None, option(OPERATION, "Maximum number of iterations.", "N", default="1; 15 per phase in a loop")
    ] = None
    phases: Annotated[int | None, option(LOOP, "How many phases, each with the next K spikes.", "N", default="1")] = (
        None
    )
    sensitivity: Annotated[
        str | None,
        option(
            LOOP,
            "How the effect of spikes on classes is measured; differences take 2K passes.",
            choices=SENSITIVITIES,
            default="gradients",
        ),
    ] = None
    amplitude: Annotated[
        float | None, option(LOOP, "Length of the first step.", "X", default="set from the curvature")
    ] = None
    control: Annotated[
        str | None, option(LOOP, "How the length of later steps adapts.", choices=CONTROLS, default="gamma")
    ] = None
    bound: Annotated[
        str | None,
        option(LOOP, "Bound on a step; a box has one for each spike.", choices=BOUNDS, default="ball"),
    ] = None
    exponent: Annotated[
        str | None, option(LOOP, "A class counts by its error to this power.", "[P|auto]", default="2")
    ] = None
