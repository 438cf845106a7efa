"""Spectra with their density, each made once and shared by the items that need it."""

from typing import Any

from hessian_surgery.curvature.search import SpikeSearch
from hessian_surgery.reproduce.workbench import Workbench
from hessian_surgery.studies.spectrum import spectrum_study

# Eigenvalues that are followed to convergence: twice the number of CIFAR-10's classes.
CONVERGED = 20
# The paper's, of figure 1; and its batch.
DENSITY_STEPS = 90
PROBES = 10
SAMPLES = 128


def spectrum_run(bench: Workbench, split: int) -> dict[str, Any]:
    """Converged spikes and the density of all eigenvalues, as `SpectrumReport.as_dict` gives them.

    Args:
        bench: the data set and its network.
        split: the seed that draws the Hessian batch.
    """
    search = SpikeSearch(spikes=bench.number(CONVERGED, 12), hessian_samples=bench.number(SAMPLES, 64))

    def compute() -> dict[str, Any]:
        return spectrum_study(
            bench.model(),
            bench.source.part("train", "data"),
            search,
            density_steps=bench.number(DENSITY_STEPS, 20),
            probes=bench.number(PROBES, 2),
            seed=split,
        ).as_dict()

    return bench.once(f"spectrum-split-{split}", compute)
