"""The advice: which method to use on this model, in a sentence or two.

Who is recommended is decided by intervals that are corrected for the number of methods, because the
best of ten often beats class bias by luck alone. What is said of a difference is its 95 % interval,
as in the table: it is "within noise" only if that includes 0.
"""

from dataclasses import dataclass

from hessian_surgery.comparison.bootstrap import difference
from hessian_surgery.comparison.fronts import Fronts
from hessian_surgery.evidence.difference import Difference

# Class bias itself, and the controls: none of these competes with class bias.
CONTROLS = ("nothing", "temperature", "class-bias", "random")
# So many trade-offs are named.
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
        figure: the figure that was aimed at, in words.
        where: where it is compared, in words.
    """

    fronts: Fronts
    names: tuple[str, ...]
    figure: str
    where: str

    def compared(self, what: str, surely: bool = False) -> dict[str, Difference]:
        """A field of every contender's `Gain`; `surely` corrects for how many there are."""
        level = 0.05 / max(1, len(self.names)) if surely else 0.05
        return {name: difference(getattr(self.fronts.gains[name], what), level) for name in self.names}


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
    effective = [n for n in contest.names if lowered[n].interval[1] < 0 or raised[n].interval[0] > 0]
    found = _leader(contest, effective) or _gainer(contest, effective) or _simplest(contest, effective)
    return Advice(found.method, " ".join([found.sentence, *_trades(contest, effective, found.method)]))


def make_contest(fronts: Fronts) -> Contest:
    """The contest for the figure that was aimed at."""
    names = tuple(name for name in fronts.gains if name.partition(":")[0] not in CONTROLS)
    if fronts.terms.targets:
        return Contest(fronts, names, "the targets' shortfall", "at the same budget")
    if fronts.terms.target == "worst":
        return Contest(fronts, names, "the worst class's error", "at the same budget")
    return Contest(fronts, names, "σ", "at the same accuracy")


def _leader(contest: Contest, effective: list[str]) -> Advice | None:
    """A method that is surely ahead of class bias, if there is one."""
    surely = contest.compared("figure", surely=True)
    leaders = [name for name in effective if surely[name].interval[1] < 0]
    if not leaders:
        return None
    figures = contest.compared("figure")
    best = min(leaders, key=lambda name: figures[name].difference)
    ahead = f"{best} is ahead of class bias by {_below(figures[best])} of {contest.figure} {contest.where}"
    others = [name for name in contest.names if name != best]
    if not others:
        return Advice(best, f"{ahead}.")
    gains = contest.fronts.gains
    following = min(others, key=lambda name: figures[name].difference)
    gap = difference(gains[best].figure - gains[following].figure)
    if gap.interval[1] < 0:
        return Advice(best, f"{ahead}, and of the next best, {following}, by {_below(gap)}.")
    return Advice(best, f"{ahead}; it differs from the next best, {following}, within noise ({_signed(gap)}).")


def _gainer(contest: Contest, effective: list[str]) -> Advice | None:
    """A method that is level with class bias in the figure and surely more accurate, if any."""
    beside = contest.compared("figure_at_budget", surely=True)
    right = contest.compared("accuracy", surely=True)
    even = [name for name in effective if beside[name].interval[0] <= 0]
    gainers = [name for name in even if right[name].interval[0] > max(0.0, beside[name].difference)]
    # What is clearly a higher figure by itself is a trade-off.
    shown = contest.compared("figure_at_budget")
    gainers = [name for name in gainers if shown[name].interval[0] <= 0]
    if not gainers:
        return None
    accuracy = contest.compared("accuracy")
    best = max(gainers, key=lambda name: accuracy[name].difference)
    return Advice(
        best,
        f"{best}: accuracy {_signed(accuracy[best])} against class bias at the same budget; "
        f"{contest.figure} differs within noise ({_signed(shown[best])}).",
    )


def _simplest(contest: Contest, effective: list[str]) -> Advice:
    """The advice if no method is surely ahead of class bias."""
    effect = contest.fronts.bias_effect
    if effect.interval[1] < 0:
        return _class_bias(contest, effective)
    lowered = contest.compared("figure_change", surely=True)
    lowering = [name for name in effective if lowered[name].interval[1] < 0]
    if not lowering:
        what = f"Nothing lowers {contest.figure} beyond noise (class bias: {_signed(effect)}): keep the model."
        return Advice("nothing", what)
    shown = contest.compared("figure_change")
    best = min(lowering, key=lambda name: shown[name].difference)
    change = f"{best} changes {contest.figure} by {_signed(shown[best])}"
    return Advice(best, f"{change} against the model as it is; class bias by {_signed(effect)}, within noise.")


def _class_bias(contest: Contest, effective: list[str]) -> Advice:
    """The advice if class bias lowers the figure, and no other method is surely ahead of it."""
    shown = contest.compared("figure")
    lowers = f"Class bias changes {contest.figure} by {_signed(contest.fronts.bias_effect)}"
    rivals = [name for name in contest.names if name not in _trading(contest, effective)]
    closest = min(rivals, key=lambda name: shown[name].difference, default=None)
    if closest is None:
        return Advice("class-bias", f"{lowers}.")
    gap = shown[closest]
    if gap.interval[0] > 0:
        behind = Difference(-gap.difference, (-gap.interval[1], -gap.interval[0]))
        return Advice("class-bias", f"{lowers}, and is ahead of the next best, {closest}, by {_below(behind)}.")
    if gap.interval[1] < 0:
        luck = f"but the best of {len(contest.names)} methods may be so by luck: class bias is simpler."
        ahead = f"{closest} is ahead of class bias by {_below(gap)} of {contest.figure} {contest.where}"
        return Advice("class-bias", f"{ahead}, {luck}")
    within = f"the closest, {closest}, differs within noise ({_signed(gap)} {contest.where})"
    return Advice("class-bias", f"Class bias is enough here: {within}. {lowers}.")


def _trading(contest: Contest, effective: list[str]) -> list[str]:
    """Methods with more accuracy and a worse figure than class bias, the most accurate first."""
    beside, right = contest.compared("figure_at_budget"), contest.compared("accuracy")
    found = [name for name in effective if right[name].interval[0] > 0 and beside[name].interval[0] > 0]
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


def _signed(found: Difference) -> str:
    low, high = found.interval
    return f"{100 * found.difference:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}] pp"


def _below(found: Difference) -> str:
    """By how much a difference is below 0."""
    low, high = found.interval
    return f"{-100 * found.difference:.2f} [{-100 * high:.2f}, {-100 * low:.2f}] pp"
