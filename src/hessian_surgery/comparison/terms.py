"""The terms of a comparison: the goal and limits that every method is held to, and which obey."""

from typing import Any

from hessian_surgery.baselines.finetune import FINETUNES
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.operation.protection import MOST_LOST


def describe_terms(terms: SurgeryConfig) -> dict[str, Any]:
    """The form that `compare.json` holds; None where the starting model decides."""
    return {
        "aim": terms.target,
        "targets": dict(terms.targets),
        "protect": list(terms.protect) or None,
        "strong_above": terms.strong_above,
        "max_drop": terms.max_drop,
        "sentence": terms_sentence(terms),
        "note": marks_note(terms),
    }


def figure_name(terms: SurgeryConfig) -> str:
    """The figure that was aimed at, in words; see `AgainstBias`."""
    if terms.targets:
        return "the targets' shortfall"
    return "σ" if terms.target == "sigma" else "the worst class's error"


def marks_note(terms: SurgeryConfig) -> str:
    """What a table's comparison with class bias is about, if that is not what was aimed at."""
    figure = figure_name(terms)
    if figure == "σ":
        return ""
    return f"“σ against class bias” and its marks are about σ alone; the advice is about {figure}."


def terms_sentence(terms: SurgeryConfig) -> str:
    """The terms in words."""
    aim = "a lower σ" if terms.target == "sigma" else "a better worst class"
    if terms.targets:
        aim = ", ".join(f"{name} at {100 * value:g} %" for name, value in terms.targets.items())
    most = f"as much as σ (at most {100 * MOST_LOST:g} pp), or what chance may show if that is more"
    if terms.max_drop is not None:
        most = f"{100 * terms.max_drop:.3g} pp each"
    return f"Every post-hoc method aims at {aim}; {_protected(terms)} may lose {most}."


def _protected(terms: SurgeryConfig) -> str:
    """The protected classes in words."""
    if terms.protect:
        return ", ".join(terms.protect)
    above = "the mean accuracy" if terms.strong_above is None else f"an accuracy of {100 * terms.strong_above:g} %"
    return f"classes above {above}" + (" that have no target" if terms.targets else "")


def why_unlimited(name: str) -> str:
    """Why an entry does not obey the terms; empty if it does."""
    stages = name.split("+")
    if stages[-1] in FINETUNES:
        return "a training knows no limits"
    if stages[-1] == "loop":
        return "the loop has limits of its own"
    return "limits count from the trained model" if stages[0] in FINETUNES else ""
