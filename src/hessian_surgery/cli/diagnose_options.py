"""The options of `diagnose`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from hessian_surgery.cli.choices import SENSITIVITIES
from hessian_surgery.cli.groups import OUTPUT, STUDY, option
from hessian_surgery.cli.options import ConfigOptions, DryRun, Figures, Json, ModelOptions


@dataclass(frozen=True, kw_only=True)
class DiagnoseOptions(ConfigOptions, ModelOptions):
    """The options of `diagnose`."""

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
            STUDY,
            "How the effect of spikes on classes is measured; differences take 2K passes.",
            choices=SENSITIVITIES,
            default="gradients",
        ),
    ] = None
    epsilon: Annotated[
        float | None, option(STUDY, "Length of the probe.", "X", default="the amplitude that the loop starts with")
    ] = None
