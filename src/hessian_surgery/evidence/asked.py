"""Asked: what an operation was asked for, which its verdict is about."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from hessian_surgery.short_repr import short_repr


@dataclass(frozen=True)
class Asked:
    """What an operation was asked for. All figures are fractions.

    Attributes:
        aim: what to improve, if there are no targets: σ, or the worst class.
        budget: overall accuracy that may be given up; None if the algorithm knows no such limit.
        targets: accuracies to reach, by class name.
        limits: what each protected class may lose, by class name.

    Example:
        >>> print(hs.Asked(budget=0.002, targets={"cat": 0.8}))
        the targets cat 80 % for at most 0.2 pp of accuracy
    """

    aim: Literal["sigma", "worst"] = "sigma"
    budget: float | None = None
    targets: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)

    __repr__ = short_repr

    def as_dict(self) -> dict[str, Any]:
        """The form that `result.json` holds."""
        return asdict(self) | {"targets": dict(self.targets), "limits": dict(self.limits)}

    def __str__(self) -> str:
        if self.targets:
            named = [f"{name} {100 * value:g} %" for name, value in self.targets.items()]
            more = f" and {len(named) - 3} more" if len(named) > 3 else ""
            what = f"the targets {', '.join(named[:3])}{more}"
        else:
            what = "a lower σ" if self.aim == "sigma" else "a better worst class"
        return what if self.budget is None else f"{what} for at most {100 * self.budget:.3g} pp of accuracy"
