"""`hessian-surgery spectrum`: eigenvalues and density of a classifier's loss curvature."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from hessian_surgery.cli.options import SearchOptions, StudyOptions
from hessian_surgery.cli.study import Tolerance, conduct
from hessian_surgery.errors import InputError
from hessian_surgery.studies import spectrum as study

Folder = Annotated[Path, typer.Option(help="Folder for the JSON and the figure.")]


@dataclass(frozen=True, kw_only=True)
class SpectrumOptions(SearchOptions, StudyOptions):
    """The options of `spectrum`."""

    out: Folder = Path("runs/spectrum")
    tolerance: Tolerance = None
    operator: Annotated[str | None, typer.Option(help="hessian or gauss-newton.")] = None
    density: Annotated[bool, typer.Option(help="Also find the density of all eigenvalues.")] = True
    density_steps: Annotated[int | None, typer.Option(help="Lanczos steps per probe of the density.")] = None
    probes: Annotated[int | None, typer.Option(help="Probes of the density.")] = None
    vectors: Annotated[bool, typer.Option("--vectors", help="Write the eigenvectors as well.")] = False


def spectrum(options: SpectrumOptions) -> None:
    """Find leading eigenvalues with residuals, and the spectral density, of the loss curvature."""
    own = {"operator": options.operator, "density_steps": options.density_steps, "probes": options.probes}
    for name in ("density_steps", "probes"):
        if own[name] is not None and not options.density:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{name}: --no-density has no use for it; leave out {option} or --no-density")
    given = {name: value for name, value in own.items() if value is not None} | {"density": options.density}
    result = conduct("spectrum", study.spectrum_study, study, options, ("training",), given)
    if options.vectors:
        result.save_vectors(options.out / "vectors.safetensors")
