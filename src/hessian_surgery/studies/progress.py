"""The progress of a study that has several parts."""

from hessian_surgery.types import Progress

# What the progress of a whole study counts to: its parts count in different units.
WHOLE = 1000


def part_of(progress: Progress | None, part: int, parts: int) -> Progress:
    """Progress of part number `part` (from 0) of `parts` equal ones, passed on as that of all."""

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(round(WHOLE * (part + done / total) / parts), WHOLE)

    return report
