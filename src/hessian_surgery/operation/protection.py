"""Which classes are protected, and what a protected class may lose."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from hessian_surgery.evidence.metrics import sigma
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.operation.problem import Problem
from hessian_surgery.types import Array

# The most that a protected class may lose by default, if there are enough images to measure it.
MOST_LOST = 0.1


@dataclass(frozen=True)
class Protection:
    """Which classes are protected, and how much they may lose.

    Attributes:
        strong_above: a class is strong if the starting model's accuracy on it is above this.
        max_drop: the accuracy that a protected class may lose, as a fraction.
        protected: which classes (C,) are protected.
    """

    strong_above: float
    max_drop: float
    protected: NDArray[np.bool_]

    def as_dict(self, classes: tuple[str, ...]) -> dict[str, Any]:
        """Plain values for `result.json`."""
        names = [name for name, chosen in zip(classes, self.protected, strict=True) if chosen]
        return {"strong_above": self.strong_above, "max_drop": self.max_drop, "protected": names}

    def limits(self, classes: tuple[str, ...]) -> dict[str, float]:
        """What each protected class may lose, by name."""
        return {name: self.max_drop for name, chosen in zip(classes, self.protected, strict=True) if chosen}


def default_threshold(per_class: Array) -> float:
    """The accuracy above which a class is strong in the default operation: the mean."""
    return float(per_class.mean())


def default_max_drop(per_class: Array, count: NDArray[np.int64]) -> float:
    """What a protected class may lose in the default operation: σ, but at most `MOST_LOST`.

    It is never less than two standard errors of a typical class's accuracy, because a smaller drop
    cannot be told from chance. With many classes it is more: as large a drop as one of them is
    likely to show by chance (3.3 standard errors with 1,000).

    Args:
        per_class: class accuracies (C,) of the starting model.
        count: images of each class (C,).
    """
    mean = float(per_class.mean())
    errors = max(2.0, float(norm.ppf(1 - 0.5 / len(per_class))))
    noise = errors * float(np.sqrt(mean * (1 - mean) / np.median(count)))
    return max(min(sigma(per_class), MOST_LOST), noise)


def protection(problem: Problem[SurgeryConfig]) -> Protection:
    """Which classes an operation protects; see `protect`."""
    data = problem.calibration_data
    return protect(problem.config, problem.base, data.counts.numpy(), data.classes)


def protect(config: SurgeryConfig, per_class: Array, count: NDArray[np.int64], classes: tuple[str, ...]) -> Protection:
    """Protect the classes named in the config, or else the strong ones; none that has a target.

    Args:
        config: says which, and what they may lose.
        per_class: class accuracies (C,) of the starting model.
        count: images of each class (C,).
        classes: their names.
    """
    strong_above = default_threshold(per_class) if config.strong_above is None else config.strong_above
    max_drop = default_max_drop(per_class, count) if config.max_drop is None else config.max_drop
    named = np.array([name in config.protect for name in classes])
    free = np.array([name in config.targets for name in classes])
    return Protection(strong_above, max_drop, (named if config.protect else per_class > strong_above) & ~free)
