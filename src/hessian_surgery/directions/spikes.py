"""Spikes as directions."""

from hessian_surgery.curvature.lanczos import Spectrum
from hessian_surgery.directions.family import Directions, Probe, numbered, probe_directions


def spike_directions(probe: Probe, spectrum: Spectrum) -> Directions:
    """Make a direction of each spike of a spectrum."""
    return probe_directions("spikes", numbered("spike", len(spectrum)), probe, spectrum.vector)
