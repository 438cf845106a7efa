"""The terms of a comparison: the goal and limits that every method is held to, and which obey."""

from typing import Any

from hessian_surgery.baselines.finetune import FINETUNES
from hessian_surgery.operation.config import SurgeryConfig


def describe_terms(terms: SurgeryConfig) -> dict[str, Any]:
    """The form that `compare.json` holds; None where the starting model decides."""
    return {
        "aim": terms.target,
        "targets": dict(terms.targets),
        "protect": list(terms.protect) or None,
        "max_drop": terms.max_drop,
        "sentence": terms_sentence(terms),
    }


def terms_sentence(terms: SurgeryConfig) -> str:
    """The terms in words."""
    aim = "a lower σ" if terms.target == "sigma" else "a better worst class"
    if terms.targets:
        aim = ", ".join(f"{name} at {100 * value:g} %" for name, value in terms.targets.items())
    who = ", ".join(terms.protect) if terms.protect else "classes above the mean accuracy"
    most = "σ, at most 10 pp or what chance may show"
    if terms.max_drop is not None:
        most = f"{100 * terms.max_drop:.3g} pp"
    return f"Every method aims at {aim}; {who} may lose {most} each."


def why_unlimited(name: str) -> str:
    """Why an entry does not obey the terms; empty if it does."""
    stages = name.split("+")
    if stages[-1] in FINETUNES:
        return "a training knows no limits"
    if stages[-1] == "loop":
        return "the loop has limits of its own"
    return "limits count from the trained model" if stages[0] in FINETUNES else ""
