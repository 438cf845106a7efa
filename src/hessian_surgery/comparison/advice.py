"""The advice: which method to use on this model, in one sentence."""

from dataclasses import dataclass

from hessian_surgery.comparison.bootstrap import difference
from hessian_surgery.comparison.fronts import Fronts
from hessian_surgery.evidence.difference import Difference

# Class bias itself, and the controls: none of these competes with class bias.
CONTROLS = ("nothing", "temperature", "class-bias", "random")


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


def advise(fronts: Fronts) -> Advice:
    """Recommend a method, from the intervals at the budget `fronts.headline`.

    The intervals are corrected for the number of methods, because the best of ten often beats class
    bias by luck alone.

    Example:
        >>> hs.advise(fronts).sentence.partition(":")[0]
        'Class bias lowers σ'
    """
    bias = fronts.row("class-bias", fronts.headline)
    if not bias.splits:
        return Advice("nothing", f"No advice: class bias failed on every split ({next(iter(bias.reasons.values()))}).")
    contenders = [name for name in fronts.gains if name.partition(":")[0] not in CONTROLS]
    level = 0.05 / max(1, len(contenders))

    def compared(what: str) -> dict[str, Difference]:
        return {name: difference(getattr(fronts.gains[name], what), level) for name in contenders}

    spread = compared("sigma")
    lowered = compared("sigma_change")
    raised = compared("accuracy_change")
    # A method that leaves the model alone is no gain, however badly class bias does.
    effective = [n for n in contenders if lowered[n].interval[1] < 0 or raised[n].interval[0] > 0]
    leaders = [name for name in effective if spread[name].interval[1] < 0]
    if leaders:
        best = min(leaders, key=lambda name: spread[name].difference)
        return Advice(best, f"{best}: σ {_below(spread[best])} class bias at the same accuracy.")
    beside = compared("sigma_at_budget")
    right = compared("accuracy")
    even = [name for name in effective if beside[name].interval[0] <= 0]
    gainers = [name for name in even if right[name].interval[0] > max(0.0, beside[name].difference)]
    if gainers:
        best = max(gainers, key=lambda name: right[name].difference)
        sentence = f"{best}: accuracy {right[best]} against class bias, and σ is not clearly higher ({beside[best]})."
        return Advice(best, sentence)
    if fronts.bias_effect.interval[1] >= 0:
        return _without_bias(fronts, effective, lowered)
    return _with_bias(fronts, spread)


def _without_bias(fronts: Fronts, effective: list[str], lowered: dict[str, Difference]) -> Advice:
    """The advice if class bias does not lower σ beyond noise."""
    lowering = [name for name in effective if lowered[name].interval[1] < 0]
    effect = fronts.bias_effect
    if not lowering:
        return Advice("nothing", f"Nothing lowers σ beyond noise (class bias: {effect}): keep the model.")
    best = min(lowering, key=lambda name: lowered[name].difference)
    sentence = f"{best}: σ {lowered[best]} against the model as it is; class bias: {effect}, within noise."
    return Advice(best, sentence)


def _with_bias(fronts: Fronts, spread: dict[str, Difference]) -> Advice:
    """The advice if class bias lowers σ, and no other method is ahead of it."""
    closest = min(spread, key=lambda name: spread[name].difference, default=None)
    if closest is None:
        return Advice("class-bias", f"Class bias lowers σ: {fronts.bias_effect}.")
    gap = spread[closest]
    if gap.interval[0] > 0:
        return Advice("class-bias", f"Class bias is best here: the next best, {closest}, is behind (σ {gap}).")
    sentence = f"Class bias is enough here: other methods differ within noise (the closest, {closest}: σ {gap})."
    return Advice("class-bias", sentence)


def _below(found: Difference) -> str:
    low, high = found.interval
    return f"{-100 * found.difference:.1f} [{-100 * high:.1f}, {-100 * low:.1f}] pp below"
