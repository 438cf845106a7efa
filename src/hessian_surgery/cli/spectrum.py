"""`hessian-surgery spectrum`: eigenvalues and density of a classifier's loss curvature."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from hessian_surgery.cli.options import SearchOptions, StudyOptions
from hessian_surgery.cli.study import run_study
from hessian_surgery.errors import InputError
from hessian_surgery.studies import spectrum as study


@dataclass(frozen=True, kw_only=True)
class SpectrumOptions(SearchOptions, StudyOptions):
    """The options of `spectrum`."""

    out: Annotated[Path, typer.Option(help="Folder for the JSON and the figure.")] = Path("runs/spectrum")
    operator: Annotated[
        str | None, typer.Option(help="The curvature: hessian or gauss-newton; by default hessian.")
    ] = None
    density: Annotated[bool, typer.Option(help="Find the density of all eigenvalues too.")] = True
    density_steps: Annotated[
        int | None, typer.Option(help="Lanczos steps for each probe of the density; by default 90.")
    ] = None
    probes: Annotated[int | None, typer.Option(help="Probes of the density; by default 10.")] = None
    vectors: Annotated[bool, typer.Option("--vectors", help="Write the eigenvectors too.")] = False


def spectrum(options: SpectrumOptions) -> None:
    """Find leading eigenvalues with residuals, and the spectral density, of the loss curvature."""
    of_density = {"density_steps": options.density_steps, "probes": options.probes}
    for name, value in of_density.items():
        if value is not None and not options.density:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{name}: got {value}, but --no-density has no use for it; leave out {option}")
    own = {"operator": options.operator, "density": options.density, **of_density}
    result = run_study("spectrum", study.spectrum_study, study, options, ("training",), own)
    if options.vectors:
        result.save_vectors(options.out / "vectors.safetensors")
