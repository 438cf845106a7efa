"""The progress of a study that has several parts, each with its share of the work."""

from collections.abc import Sequence

from hessian_surgery.curvature.search import SpikeFinder
from hessian_surgery.types import Progress

# What the progress of a whole study counts to: its parts count in different units.
WHOLE = 1000
# What a Hessian product costs, in forward passes over its batch.
PASSES_PER_PRODUCT = 6


def part_of(progress: Progress | None, part: int, work: Sequence[float]) -> Progress:
    """Progress of part number `part` (from 0), passed on as that of the whole study.

    Args:
        progress: told of the whole; None if nobody is.
        part: which one.
        work: how much there is in each part, in any unit.
    """
    before = sum(work[:part])

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(round(WHOLE * (before + work[part] * done / total) / sum(work)), WHOLE)

    return report


def spike_work(finder: SpikeFinder) -> float:
    """The work of finding spikes, in forward passes of an image."""
    return PASSES_PER_PRODUCT * finder.likely_steps * min(finder.search.hessian_samples, len(finder.data))
