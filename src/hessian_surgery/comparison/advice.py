"""The advice: which method to use on this model, in a sentence or two.

Who is recommended is decided by intervals that are corrected for the number of methods, because the
best of ten often beats class bias by luck alone. What is said of a difference is its 95 % interval,
as in the table: it is "within noise" only if that includes 0. An entry that does not obey the
limits is never recommended; what it gains is told with the reason.
"""

from dataclasses import dataclass
from typing import Literal

from hessian_surgery.comparison.bootstrap import difference
from hessian_surgery.comparison.fronts import Fronts
from hessian_surgery.comparison.terms import figure_name, why_unlimited
from hessian_surgery.evidence.difference import Difference

# Class bias itself, and the controls: none of these competes with class bias.
CONTROLS = ("nothing", "temperature", "class-bias", "random")
# So many trade-offs are named, and so many gains of entries that do not obey the limits.
TRADES = 2


@dataclass(frozen=True)
class Advice:
    """Which method to use, and why.

    Attributes:
        method: the method's name, or `nothing` to keep the model.
        sentence: the reason, with numbers.

    Example:
        >>> hs.advise(fronts).method
        'class-bias'
    """

    method: str
    sentence: str


@dataclass(frozen=True)
class Contest:
    """The methods that compete with class bias, at the budget `fronts.headline`.

    Attributes:
        fronts: the comparison.
        names: the contenders.
        unlimited: entries that would be, but do not obey the limits.
        figure: the figure that was aimed at, in words.
        where: where it is compared, in words.
    """

    fronts: Fronts
    names: tuple[str, ...]
    unlimited: tuple[str, ...]
    figure: str
    where: str

    def compared(self, what: str, surely: bool = False) -> dict[str, Difference]:
        """A field of each `AgainstBias`; `surely` corrects for the number of contenders."""
        level = 0.05 / max(1, len(self.names)) if surely else 0.05
        found = self.fronts.against_bias
        return {name: difference(getattr(found[name], what), level) for name in (*self.names, *self.unlimited)}


def advise(fronts: Fronts) -> Advice:
    """Recommend a method, from the intervals at the budget `fronts.headline`.

    Example:
        >>> hs.advise(fronts).sentence.partition(" by")[0]
        'Class bias changes σ'
    """
    bias = fronts.row("class-bias", fronts.headline)
    if not bias.splits:
        return Advice("nothing", f"No advice: class bias failed on every split ({next(iter(bias.reasons.values()))}).")
    contest = make_contest(fronts)
    lowered = contest.compared("figure_change", surely=True)
    raised = contest.compared("accuracy_change", surely=True)
    # A method that leaves the model alone is no gain, however badly class bias does.
    improved = [n for n in lowered if _side(lowered[n]) == "below" or _side(raised[n]) == "above"]
    effective = [name for name in improved if name in contest.names]
    found = _leader(contest, effective) or _gainer(contest, effective) or _simplest(contest, effective)
    others = (*_trades(contest, effective, found.method), *_beyond_limits(contest, improved))
    return Advice(found.method, " ".join([found.sentence, *others]))


def make_contest(fronts: Fronts) -> Contest:
    """The contest for the figure that was aimed at."""
    entries = [name for name in fronts.against_bias if name.partition(":")[0] not in CONTROLS]
    figure = figure_name(fronts.terms)
    return Contest(
        fronts,
        names=tuple(name for name in entries if not why_unlimited(name)),
        unlimited=tuple(name for name in entries if why_unlimited(name)),
        figure=figure,
        where="at the same accuracy" if figure == "σ" else "at the same budget",
    )


def _leader(contest: Contest, effective: list[str]) -> Advice | None:
    """A method that is surely ahead of class bias, if there is one."""
    surely = contest.compared("figure", surely=True)
    leaders = [name for name in effective if _side(surely[name]) == "below"]
    if not leaders:
        return None
    figures = contest.compared("figure")
    best = min(leaders, key=lambda name: figures[name].difference)
    ahead = f"{best} is ahead of class bias by {_below(figures[best])} of {contest.figure} {contest.where}"
    others = [name for name in contest.names if name != best]
    if not others:
        return Advice(best, f"{ahead}.")
    values = contest.fronts.against_bias
    following = min(others, key=lambda name: figures[name].difference)
    gap = difference(values[best].figure - values[following].figure)
    # One that is no leader may be lower all the same: its own interval is wide.
    called = f"the next best, {following}," if gap.difference <= 0 else f"the lowest, {following},"
    if _side(gap) == "below":
        return Advice(best, f"{ahead}, and of {called} by {_below(gap)}.")
    if _side(gap) == "above":
        unsure = "but is not surely better than class bias and the model as it is"
        return Advice(best, f"{ahead}; {called} is below it by {_below(_reversed(gap))}, {unsure}.")
    return Advice(best, f"{ahead}; it differs from {called} within noise ({_signed(gap)}).")


def _gainer(contest: Contest, effective: list[str]) -> Advice | None:
    """A method that is surely more accurate than class bias, with no higher figure, if any."""
    beside = contest.compared("figure_at_budget")
    right = contest.compared("accuracy", surely=True)
    gainers = [
        name
        for name in effective
        # What is clearly a higher figure is a trade-off.
        if _side(beside[name]) != "above" and right[name].interval[0] > max(0.0, beside[name].difference)
    ]
    if not gainers:
        return None
    accuracy = contest.compared("accuracy")
    best = max(gainers, key=lambda name: accuracy[name].difference)
    level = "is lower too" if _side(beside[best]) == "below" else "differs within noise"
    return Advice(
        best,
        f"{best}: accuracy {_signed(accuracy[best])} against class bias at the same budget; "
        f"{contest.figure} {level} ({_signed(beside[best])}).",
    )


def _simplest(contest: Contest, effective: list[str]) -> Advice:
    """The advice if no method is surely ahead of class bias."""
    effect = contest.fronts.bias_effect
    if _side(effect) == "below":
        return _class_bias(contest, effective)
    lowered = contest.compared("figure_change", surely=True)
    lowering = [name for name in effective if _side(lowered[name]) == "below"]
    if not lowering:
        what = f"Nothing lowers {contest.figure} beyond noise (class bias: {_signed(effect)}): keep the model."
        return Advice("nothing", what)
    shown = contest.compared("figure_change")
    best = min(lowering, key=lambda name: shown[name].difference)
    change = f"{best} changes {contest.figure} by {_signed(shown[best])}"
    noise = "within noise" if _side(effect) == "within" else "which is worse"
    return Advice(best, f"{change} against the model as it is; class bias by {_signed(effect)}, {noise}.")


def _class_bias(contest: Contest, effective: list[str]) -> Advice:
    """The advice if class bias lowers the figure, and no other method is surely ahead of it."""
    shown = contest.compared("figure")
    lowers = f"Class bias changes {contest.figure} by {_signed(contest.fronts.bias_effect)}"
    rivals = [name for name in contest.names if name not in _trading(contest, effective)]
    closest = min(rivals, key=lambda name: shown[name].difference, default=None)
    if closest is None:
        return Advice("class-bias", f"{lowers}.")
    gap = shown[closest]
    if _side(gap) == "above":
        behind = _below(_reversed(gap))
        return Advice("class-bias", f"{lowers}, and is ahead of the next best, {closest}, by {behind} {contest.where}.")
    if _side(gap) == "below":
        luck = f"but the best of {len(contest.names)} methods may be so by luck: class bias is simpler."
        ahead = f"{closest} is ahead of class bias by {_below(gap)} of {contest.figure} {contest.where}"
        return Advice("class-bias", f"{ahead}, {luck}")
    within = f"the closest, {closest}, differs within noise ({_signed(gap)} {contest.where})"
    if gap.difference == gap.interval[0] == gap.interval[1] == 0:
        within = f"{closest} makes the same step"
    return Advice("class-bias", f"Class bias is enough here: {within}. {lowers}.")


def _trading(contest: Contest, effective: list[str]) -> list[str]:
    """Methods with more accuracy and a worse figure than class bias, the most accurate first."""
    beside, right = contest.compared("figure_at_budget"), contest.compared("accuracy")
    found = [name for name in effective if _side(right[name]) == _side(beside[name]) == "above"]
    return sorted(found, key=lambda name: -right[name].difference)


def _trades(contest: Contest, effective: list[str], advised: str) -> list[str]:
    """A sentence for each trade-off against class bias."""
    beside, right = contest.compared("figure_at_budget"), contest.compared("accuracy")
    return [
        f"Trade-off: against class bias at the same budget, {name} changes accuracy by {_signed(right[name])} "
        f"and {contest.figure} by {_signed(beside[name])}."
        for name in _trading(contest, effective)[:TRADES]
        if name != advised
    ]


def _beyond_limits(contest: Contest, improved: list[str]) -> list[str]:
    """A sentence for each entry that is better than class bias and does not obey the limits."""
    figure, right = contest.compared("figure"), contest.compared("accuracy")
    better = [n for n in contest.unlimited if _side(figure[n]) == "below" or _side(right[n]) == "above"]
    beside = contest.compared("figure_at_budget")
    # Most of them have no budget.
    bias = f"class bias at a budget of {100 * contest.fronts.headline:g} pp"
    return [
        f"Against {bias}, {name} changes accuracy by {_signed(right[name])} and {contest.figure} by "
        f"{_signed(beside[name])}, but {why_unlimited(name)}."
        for name in sorted(better, key=lambda name: beside[name].difference)
        if name in improved
    ][:TRADES]


def _side(found: Difference) -> Literal["below", "within", "above"]:
    """On which side of 0 the whole interval is; "within" if it includes 0."""
    low, high = found.interval
    return "below" if high < 0 else "above" if low > 0 else "within"


def _reversed(found: Difference) -> Difference:
    """The second minus the first."""
    low, high = found.interval
    return Difference(-found.difference, (-high, -low))


def _signed(found: Difference) -> str:
    low, high = found.interval
    return f"{100 * found.difference:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}] pp"


def _below(found: Difference) -> str:
    """By how much a difference is below 0."""
    low, high = found.interval
    return f"{-100 * found.difference:.2f} [{-100 * high:.2f}, {-100 * low:.2f}] pp"
