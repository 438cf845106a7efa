"""How closely the spikes of two Lanczos runs agree (appendix A)."""

from collections.abc import Sequence
from dataclasses import dataclass

from hessian_surgery.curvature.lanczos import Spectrum
from hessian_surgery.studies.subspace_angles import (
    common_coordinates,
    diagonal_cosines,
    matched_cosines,
    principal_angles,
    spike_rows,
)


@dataclass(frozen=True)
class Angles:
    """Principal angles between the spans of the k leading spikes of two runs.

    Attributes:
        subspace: k.
        largest: the largest angle, in degrees.
        mean: the mean of the k angles, in degrees.
    """

    subspace: int
    largest: float
    mean: float


@dataclass(frozen=True)
class Agreement:
    """How close the spikes of one run are to those of another.

    Attributes:
        matched_mean: mean |cos| of greedily matched spikes.
        matched_min: the smallest of these |cos|.
        diagonal_mean: mean |cos| of spikes of the same rank.
        angles: one entry for each k for which both runs have spikes.
    """

    matched_mean: float
    matched_min: float
    diagonal_mean: float
    angles: tuple[Angles, ...]

    def at(self, k: int) -> Angles | None:
        """The angles between the k leading spikes of both runs; None if one of them has fewer."""
        return next((angles for angles in self.angles if angles.subspace == k), None)


def agreement(one: Spectrum, other: Spectrum, subspaces: Sequence[int]) -> Agreement:
    """Compare two sets of spikes.

    Args:
        one: the spikes of one run.
        other: those of another, on the same weights.
        subspaces: for which k to compare the spans of the k leading spikes; a k larger than either
            run's number of spikes is left out.
    """
    a, b = common_coordinates(spike_rows(one), spike_rows(other))
    matched = matched_cosines(a, b)
    diagonal = diagonal_cosines(a, b)
    angles = []
    for k in subspaces:
        if k <= min(len(one), len(other)):
            between = principal_angles(a[:k], b[:k])
            angles.append(Angles(k, float(between.max()), float(between.mean())))
    return Agreement(float(matched.mean()), float(matched.min()), float(diagonal.mean()), tuple(angles))
