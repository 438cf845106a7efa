"""Random directions: a control, which should do nothing."""

from hessian_surgery.curvature.basis import length
from hessian_surgery.curvature.krylov import gaussian
from hessian_surgery.directions.family import Directions, Probe, numbered, probe_directions
from hessian_surgery.seeding import generator


def random_directions(probe: Probe, count: int, seed: int = 0) -> Directions:
    """Draw `count` Gaussian directions of unit length."""
    drawn = (gaussian(probe.space, generator(seed, "random-direction", i)) for i in range(count))
    rows = [vector / length(vector) for vector in drawn]
    return probe_directions("random", numbered("random", count), probe, rows.__getitem__)
