"""`hessian-surgery spectrum`: eigenvalues and density of a classifier's loss curvature."""

from hessian_surgery.cli.study import run_study
from hessian_surgery.cli.study_options import SpectrumOptions
from hessian_surgery.errors import InputError
from hessian_surgery.studies import spectrum as study


def spectrum(options: SpectrumOptions) -> None:
    """Find leading eigenvalues with residuals, and the spectral density, of the loss curvature."""
    of_density = {"density_steps": options.density_steps, "probes": options.probes}
    for name, value in of_density.items():
        if value is not None and not options.density:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{name}: got {value}, but --no-density has no use for it; leave out {option}")
    own = {"operator": options.operator, "density": options.density, **of_density}
    vectors = "vectors.safetensors" if options.vectors else None
    run_study("spectrum", study.spectrum_study, study, options, ("training",), own, vectors)
