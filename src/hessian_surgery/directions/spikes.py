"""Spikes as directions."""

from hessian_surgery.curvature.lanczos import Spectrum
from hessian_surgery.directions.family import Directions, Probe, probe_directions


def spike_directions(probe: Probe, spectrum: Spectrum) -> Directions:
    """The spikes of a spectrum."""
    return probe_directions("spikes", probe, spectrum.vector, len(spectrum))
