"""What an outcome says of targets and protected classes."""

import hessian_surgery as hs

# What the cases call each kind of promise; the budget is measured apart.
KINDS = {"target": "target", "limit": "protected"}


def stated(outcome: hs.Outcome) -> list[tuple[str, str, bool]]:
    """Each promise as (`target` or `protected`, class, whether the outcome says that it is kept).

    What cannot be told is not said to be kept.
    """
    return [
        (KINDS[promise.promise], promise.name, promise.state in ("reached", "kept"))
        for promise in outcome.findings.promises
        if promise.promise in KINDS and promise.name is not None
    ]
