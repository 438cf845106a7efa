"""What an outcome says of targets and protected classes, whichever version of the tool made it."""

from collections.abc import Mapping, Sequence
from typing import Any

import hessian_surgery as hs


def stated(outcome: hs.Outcome) -> list[tuple[str, str, bool]]:
    """Each promise as (`target` or `protected`, class, whether the outcome says that it is kept).

    An outcome without a list of promises says so by the calibration images alone.
    """
    before, after = outcome.findings.calibration.metrics()
    classes = outcome.findings.calibration.classes
    targets = outcome.config.targets
    limits = {name: before.per_class[classes.index(name)] for name in outcome.choices["protected"]}
    drop = outcome.choices["max_drop"]
    reached = [("target", name, after.per_class[classes.index(name)] >= value) for name, value in targets.items()]
    kept = [("protected", name, after.per_class[classes.index(name)] >= v - drop - 1e-9) for name, v in limits.items()]
    return reached + kept


def fold_weights(outcome: hs.Outcome) -> Sequence[Mapping[str, Any]]:
    """The weights of each fold's model, if the outcome holds them."""
    return getattr(outcome, "fold_weights", None) or ()
