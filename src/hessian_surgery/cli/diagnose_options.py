"""The options of `diagnose`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from hessian_surgery.cli.choices import SENSITIVITIES
from hessian_surgery.cli.groups import OUTPUT, SPIKES, option
from hessian_surgery.cli.options import Budget, ConfigOptions, DryRun, Figures, GoalOptions, Json, ModelOptions


@dataclass(frozen=True, kw_only=True)
class DiagnoseOptions(GoalOptions, ConfigOptions, ModelOptions):
    """The options of `diagnose`."""

    budget: Budget = None
    spikes: Annotated[
        str | None,
        option(
            SPIKES,
            "Also find so many spikes (outlier Hessian eigenvectors), and what they do to classes; auto: C − 1 for C "
            "classes, at most 99.",
            "[K|auto]",
            choices=("auto",),
            default="none: one forward pass is enough",
        ),
    ] = None  # type: ignore[assignment]
    out: Annotated[
        Path | None,
        option(OUTPUT, "Folder to keep report.html and diagnosis.json in.", "DIR", default="nothing is kept"),
    ] = None
    dry_run: DryRun = False
    as_json: Json = False
    figures: Figures = None
    sensitivity: Annotated[
        str | None,
        option(
            SPIKES,
            "How the effect of spikes on classes is measured; differences take 2K passes.",
            choices=SENSITIVITIES,
            default="gradients",
        ),
    ] = None
    epsilon: Annotated[
        float | None, option(SPIKES, "Length of the probe.", "X", default="the amplitude that the loop starts with")
    ] = None
