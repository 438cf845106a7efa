"""Row: one number of the paper beside ours, and whether the two agree."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

Verdict: TypeAlias = Literal["reproduced", "not reproduced", "not comparable"]


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Attributes:
        label: what is measured, such as "σ after surgery".
        unit: "pp", "%", "°", "s" or "".
        paper: the paper's number; None if it gives none.
        ours: our number on each split.
        interval: 95 % over resampled images, averaged over splits; None if nothing was resampled.
        verdict: whether the two agree.
        why: the rule or the reason behind the verdict, in a few words.
    """

    label: str
    unit: str
    paper: float | None
    ours: tuple[float, ...]
    interval: tuple[float, float] | None
    verdict: Verdict
    why: str

    @property
    def mean(self) -> float:
        """Our mean over splits."""
        return statistics.fmean(self.ours)

    @property
    def spread(self) -> float | None:
        """Our standard deviation over splits; None with a single one."""
        return statistics.stdev(self.ours) if len(self.ours) > 1 else None

    def as_dict(self) -> dict[str, Any]:
        """The form that files hold."""
        return asdict(self) | {"mean": self.mean, "spread": self.spread}


def change_row(
    label: str,
    unit: str,
    paper: float,
    ours: Sequence[float],
    intervals: Sequence[tuple[float, float]],
) -> Row:
    """A change that the paper claims: reproduced if ours has its sign beyond chance.

    Args:
        label: what changes.
        unit: of the numbers.
        paper: the paper's change.
        ours: our change on each split.
        intervals: 95 % of each, over resampled images.
    """
    low, high = mean_interval(intervals)
    beyond = low > 0 if paper > 0 else high < 0
    rule = "same sign as the paper's, and the interval excludes 0"
    return Row(
        label, unit, paper, tuple(ours), (low, high), "reproduced" if beyond else "not reproduced", f"rule: {rule}"
    )


def claim_row(
    label: str,
    unit: str,
    paper: float | None,
    ours: Sequence[float],
    holds: bool,
    rule: str,
    interval: tuple[float, float] | None = None,
) -> Row:
    """A claim about a number: reproduced if `holds`, by the rule that is given in words."""
    verdict: Verdict = "reproduced" if holds else "not reproduced"
    return Row(label, unit, paper, tuple(ours), interval, verdict, f"rule: {rule}")


def shown_row(
    label: str,
    unit: str,
    paper: float | None,
    ours: Sequence[float],
    why: str,
    interval: tuple[float, float] | None = None,
) -> Row:
    """A number that depends on the network or the machine: it is shown, and not judged."""
    return Row(label, unit, paper, tuple(ours), interval, "not comparable", why)


def unjudged(row: Row, why: str) -> Row:
    """The same row, shown and not judged."""
    return replace(row, verdict="not comparable", why=why)


def mean_interval(intervals: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The mean of the lower ends, and that of the upper ends."""
    return statistics.fmean(low for low, _ in intervals), statistics.fmean(high for _, high in intervals)
