"""Row: one entry at one budget, as means over splits."""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from hessian_surgery.comparison.bootstrap import Tally, difference, mean_gap
from hessian_surgery.comparison.run_context import EntryResult
from hessian_surgery.comparison.terms import why_unlimited
from hessian_surgery.evidence.difference import Difference
from hessian_surgery.short_repr import short_repr

# The entries that every row is compared with, at equal accuracy.
REFERENCES = ("class-bias", "spikes")
# How σ is against class bias at the same accuracy.
Standing: TypeAlias = Literal["ahead", "level", "behind", "trade-off", "none"]


@dataclass(frozen=True)
class Row:
    """One entry at one budget: means over splits, on held-out images. Fractions, not percent.

    Attributes:
        name: the entry's name.
        budget: accuracy that it may give up on the calibration images; None if it has one point.
        splits: how many splits it was judged on.
        delta_accuracy: accuracy minus that of the original model.
        sigma: σ of the class accuracies, as measured.
        sigma_se: standard error of `sigma`, by a bootstrap over images.
        sigma_spread: standard deviation of `sigma` over splits.
        worst: the worst class's accuracy.
        balanced_accuracy: mean of the class accuracies.
        seconds: seconds to prepare once and to fit one split.
        paired: by entry, σ minus the σ of that entry's front at this row's accuracy, both without
            sampling noise, with 95 % intervals.
        reasons: why it failed, by split.
        sigma_change: σ minus that of the original model, both without sampling noise, with its
            95 % interval; None if there are no figures.
        verdicts: how many splits have each verdict, for a whole operation and for class bias at a
            budget of 0 or more.
        loss: the accuracy that the class which lost most has lost, and the class; None if there are
            no figures.
        unlimited: why the limits are not obeyed; empty if they are.
        missed: how far targets are missed, on average over them; None if there are none.
        beyond: accuracy minus the highest on the front of class bias, where σ can be compared no
            more; None for class bias, and if there are no figures.

    Example:
        >>> row = fronts.row("class-bias", fronts.headline)
        >>> row.name, row.splits
        ('class-bias', 2)
    """

    name: str
    budget: float | None
    splits: int
    delta_accuracy: float
    sigma: float
    sigma_se: float
    sigma_spread: float
    worst: float
    balanced_accuracy: float
    seconds: float
    paired: dict[str, Difference]
    reasons: dict[int, str]
    sigma_change: Difference | None = None
    verdicts: dict[str, int] = field(default_factory=dict)
    loss: tuple[float, str] | None = None
    unlimited: str = ""
    beyond: Difference | None = None
    missed: float | None = None

    __repr__ = short_repr

    def as_dict(self) -> dict[str, Any]:
        """Return what `compare --json` prints; a row without figures has nulls and a reason."""
        names = ("delta_accuracy", "sigma", "sigma_se", "sigma_spread", "worst", "balanced_accuracy")
        figures = {name: getattr(self, name) if self.splits else None for name in names}
        paired = {f"paired_vs_{name.replace('-', '_')}": vars(found) for name, found in self.paired.items()}
        return {
            "name": self.name,
            "budget": self.budget,
            "splits": self.splits,
            **figures,
            "seconds": self.seconds,
            **{f"paired_vs_{name.replace('-', '_')}": None for name in REFERENCES},
            **paired,
            "sigma_change": vars(self.sigma_change) if self.sigma_change else None,
            "verdicts": self.verdicts,
            "largest_loss": {"loss": self.loss[0], "class": self.loss[1]} if self.loss else None,
            "missed": self.missed,
            "unlimited": self.unlimited,
            "standing": self.standing,
            "reason": next(iter(self.reasons.values()), None),
            "failed_splits": sorted(self.reasons),
        }

    @property
    def standing(self) -> Standing:
        """Where the row is against class bias; a σ above it with more accuracy is a trade-off."""
        paired = self.paired.get("class-bias")
        if paired is None:
            return "none"
        low, high = paired.interval
        if low > 0:
            return "trade-off" if self.beyond and self.beyond.interval[0] > 0 else "behind"
        return "ahead" if high < 0 else "level"


def make_row(
    result: EntryResult, found: Tally, nothing: Tally, paired: dict[str, Difference], classes: tuple[str, ...]
) -> Row:
    """The row of a result.

    Args:
        result: what the entry predicts.
        found: its figures.
        nothing: those of the original model.
        paired: see `Row`.
        classes: their names.
    """
    valid = found.valid
    if not valid.any():
        nan = float("nan")
        return Row(result.name, result.budget, 0, nan, nan, nan, nan, nan, nan, result.seconds, {}, result.reasons)
    lost = (nothing.per_class - found.per_class)[valid].mean(axis=0)
    sigma = found.sigma[:, valid]
    return Row(
        name=result.name,
        budget=result.budget,
        splits=int(valid.sum()),
        delta_accuracy=float((found.accuracy - nothing.accuracy)[0, valid].mean()),
        sigma=float(sigma[0].mean()),
        sigma_se=float(sigma[1:].mean(axis=1).std(ddof=1)),
        sigma_spread=float(sigma[0].std(ddof=1)) if valid.sum() > 1 else 0.0,
        worst=float(found.worst[0, valid].mean()),
        balanced_accuracy=float(found.balanced[0, valid].mean()),
        seconds=result.seconds,
        paired=paired,
        reasons=result.reasons,
        sigma_change=difference(mean_gap(found.clean, nothing.clean)),
        loss=(float(lost.max()), classes[int(lost.argmax())]),
        unlimited=why_unlimited(result.name),
    )
