"""AgainstBias: an entry against class bias, by the figure that was aimed at."""

from dataclasses import dataclass

from hessian_surgery.comparison.bootstrap import Tally, mean_gap
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.types import Array


@dataclass(frozen=True)
class AgainstBias:
    """An entry against class bias, by resample (R + 1,); the first value is the images themselves.

    The figure is what was aimed at, and better if it is lower: σ without sampling noise, the worst
    class's error, or how far targets are missed.

    Attributes:
        figure: the figure minus that of class bias: σ at the same accuracy, others at the headline
            budget.
        figure_at_budget: the same with class bias at the headline budget, and the entry too if it
            has budgets.
        accuracy: accuracy minus that of class bias, likewise.
        figure_change: the figure minus that of the original model.
        accuracy_change: accuracy minus that of the original model.
    """

    figure: Array
    figure_at_budget: Array
    accuracy: Array
    figure_change: Array
    accuracy_change: Array


def figure_of(found: Tally, terms: SurgeryConfig) -> Array:
    """The figure that was aimed at (R + 1, S)."""
    if terms.targets:
        return found.missed
    return found.clean if terms.target == "sigma" else 1 - found.worst


def against_bias(gap: Array, found: Tally, bias: Tally, nothing: Tally, terms: SurgeryConfig) -> AgainstBias:
    """An entry against class bias; `gap` is that of σ at the same accuracy (R + 1,)."""
    mine, other, start = (figure_of(one, terms) for one in (found, bias, nothing))
    at_budget = mean_gap(mine, other)
    by_sigma = terms.target == "sigma" and not terms.targets
    return AgainstBias(
        figure=gap if by_sigma else at_budget,
        figure_at_budget=at_budget,
        accuracy=mean_gap(found.accuracy, bias.accuracy),
        figure_change=mean_gap(mine, start),
        accuracy_change=mean_gap(found.accuracy, nothing.accuracy),
    )
