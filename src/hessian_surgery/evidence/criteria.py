"""Acceptance criteria as they were checked on held-out images."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

# So many of what was asked for are shown one by one.
SHOWN = 12


@dataclass(frozen=True)
class CheckedCriterion:
    """One criterion of one class. Figures are fractions.

    Attributes:
        name: the class.
        criterion: "minimum_accuracy", or "maximum_drop" against the starting model.
        asked: the least accuracy, or the largest drop.
        measured: the accuracy, or the drop (negative for a gain), on the held-out images.
        interval: of `measured`, 95 %.
        met: whether `measured` is within `asked`.
        advice: settings that may meet it, if it is not met and any are known.
    """

    name: str
    criterion: Literal["minimum_accuracy", "maximum_drop"]
    asked: float
    measured: float
    interval: tuple[float, float]
    met: bool
    advice: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The form that `result.json` holds."""
        plain = asdict(self)
        return {"class": plain.pop("name")} | plain

    @staticmethod
    def from_dict(content: dict[str, Any]) -> "CheckedCriterion":
        """The inverse of `as_dict`."""
        rest = {key: value for key, value in content.items() if key != "class"}
        return CheckedCriterion(content["class"], **rest | {"interval": tuple(content["interval"])})

    @property
    def wanted(self) -> str:
        """What was asked for, in words."""
        if self.criterion == "minimum_accuracy":
            return f"{self.name}, accuracy of at least {100 * self.asked:g} %"
        return f"{self.name}, at most {100 * self.asked:g} pp lost"

    @property
    def figure(self) -> str:
        """What was measured, with its interval; a drop as the change that it is."""
        low, high = (100 * end for end in self.interval)
        if self.criterion == "minimum_accuracy":
            return f"{100 * self.measured:.1f} % [{low:.1f}, {high:.1f}]"
        change, least, most = (round(-end, 1) + 0.0 for end in (100 * self.measured, high, low))  # no "-0.0"
        return f"{change:+.1f} pp [{least:+.1f}, {most:+.1f}]"

    @property
    def failure(self) -> str:
        """What is said of a criterion that is not met."""
        if self.criterion == "minimum_accuracy":
            return f"{self.name}: accuracy {100 * self.measured:.1f} %, minimum_accuracy is {100 * self.asked:g} %"
        return f"{self.name}: lost {100 * self.measured:.1f} pp, maximum_drop is {100 * self.asked:g} pp"

    @property
    def remedy(self) -> str:
        """The advice, as the end of a sentence; nothing if there is none."""
        return f"; {self.advice}" if self.advice else ""


def criteria_lines(criteria: Sequence[CheckedCriterion]) -> list[str]:
    """One line for each acceptance criterion that is not met, and one for all that are."""
    failed = [one for one in criteria if not one.met]
    lines = [f"✗ criterion {one.wanted}: not met, {one.figure}{one.remedy}" for one in failed[:SHOWN]]
    if len(failed) > SHOWN:
        lines.append(f"✗ {len(failed) - SHOWN:,} more criteria: not met")
    met = len(criteria) - len(failed)
    return lines + ([f"✓ {met:,} of {len(criteria):,} acceptance criteria: met"] if met else [])
