"""An operation against its acceptance criteria, with settings that may meet those that are not."""

from dataclasses import asdict, replace

from hessian_surgery.evidence.criteria import CheckedCriterion
from hessian_surgery.evidence.verdict import judge
from hessian_surgery.operation.acceptance_criteria import Criteria, check_criteria
from hessian_surgery.operation.outcome import Outcome


def with_criteria(outcome: Outcome, criteria: Criteria) -> Outcome:
    """The outcome with each criterion checked on the held-out images, and its verdict with them."""
    found = outcome.findings
    checked = check_criteria(criteria, found.heldout)
    checked = tuple(one if one.met else replace(one, advice=_advice(one, outcome)) for one in checked)
    verdict = judge(found.tests, len(found.heldout.labels), found.asked, found.promises, checked)
    acceptance = {
        "criteria": asdict(criteria),
        "checked": [one.as_dict() for one in checked],
        "failed": [one.failure for one in checked if not one.met],
    }
    return replace(outcome, findings=replace(found, criteria=checked).judged(verdict), acceptance=acceptance)


def _advice(unmet: CheckedCriterion, outcome: Outcome) -> str | None:
    """Settings that are predicted to meet a criterion, or what stands in its way; None in the loop.

    The plan has aimed at every criterion already.
    """
    if outcome.findings.asked.budget is None:
        return None
    if unmet.criterion == "maximum_drop":
        return "the plan kept to it on the calibration images: give more of these, or plan with a smaller drop"
    predicted = _predicted(unmet, outcome)
    if predicted is not None:
        return predicted
    untold = ", and no budget tried is predicted to meet it" if outcome.front else ""
    return f"the plan aimed at it{untold}: give limits or budget more room, or ask for less"


def _predicted(unmet: CheckedCriterion, outcome: Outcome) -> str | None:
    """The point of the front nearest to the run that is predicted to reach a minimum, if any is.

    Accuracies before and after are those of the calibration images. The run's own settings, and
    what would do nothing, are no advice.
    """
    front, asked = outcome.front, outcome.findings.asked
    if front is None or asked.budget is None:
        return None
    j = outcome.findings.heldout.classes.index(unmet.name)
    base = front["base"]["per_class"]
    done = getattr(outcome.iterations[0], "predicted", base)
    meeting = [
        point
        for point in front["points"]
        if point["per_class"][j] >= unmet.asked
        and point["per_class"] not in (base, done)
        and (point["objective"], point["budget"]) != (asked.aim, asked.budget)
    ]
    if not meeting:
        return None
    budget = asked.budget
    best = min(meeting, key=lambda point: (point["objective"] != asked.aim, abs(point["budget"] - budget)))
    accuracy = f"{100 * best['per_class'][j]:.1f} %"
    return f"target={best['objective']!r}, budget={best['budget']:g} is predicted to meet it ({accuracy})"
