"""An operation against its acceptance criteria, with settings that may meet those that are not."""

from collections.abc import Sequence
from dataclasses import asdict, replace

from hessian_surgery.evidence.criteria import CheckedCriterion
from hessian_surgery.evidence.verdict import judge
from hessian_surgery.operation.acceptance_criteria import Criteria, check_criteria
from hessian_surgery.operation.outcome import Outcome

# With more protected classes than this, they are not listed.
LISTED = 12


def with_criteria(outcome: Outcome, criteria: Criteria) -> Outcome:
    """The outcome with each criterion checked on the held-out images, and its verdict with them."""
    found = outcome.findings
    checked = check_criteria(criteria, found.heldout)
    checked = tuple(one if one.met else replace(one, advice=_advice(one, checked, outcome)) for one in checked)
    verdict = judge(found.tests, len(found.heldout.labels), found.asked, found.promises, checked)
    acceptance = {
        "criteria": asdict(criteria),
        "checked": [one.as_dict() for one in checked],
        "failed": [one.failure for one in checked if not one.met],
    }
    return replace(outcome, findings=replace(found, criteria=checked).judged(verdict), acceptance=acceptance)


def _advice(unmet: CheckedCriterion, checked: Sequence[CheckedCriterion], outcome: Outcome) -> str | None:
    """Settings that are predicted to meet a criterion, or that ask for it; None in the loop."""
    if outcome.findings.asked.budget is None:
        return None
    predicted = _predicted(unmet, outcome)
    if predicted is not None:
        return predicted
    if unmet.criterion == "minimum_accuracy":
        untold = "not predicted at any budget tried; " if outcome.front else ""
        short = [one for one in checked if one.criterion == "minimum_accuracy" and not one.met]
        named = short if len(short) <= LISTED else [unmet]
        return f"{untold}targets={ {one.name: one.asked for one in named} } asks for it"
    failed = [one.name for one in checked if one.criterion == "maximum_drop" and not one.met]
    free = [name for name in failed if name not in outcome.findings.asked.targets]
    protected = list(dict.fromkeys((*outcome.findings.asked.limits, *free)))
    if unmet.name not in free:
        return None
    if len(protected) <= LISTED:
        return f"protect={tuple(protected)}, max_drop={unmet.asked:g} asks for it"
    return f"protect {unmet.name} as well, with max_drop={unmet.asked:g}"


def _predicted(unmet: CheckedCriterion, outcome: Outcome) -> str | None:
    """The point of the front nearest to the run that is predicted to meet a criterion, if any is.

    Accuracies before and after are those of the calibration images. What was done, and what would
    do nothing, are no advice.
    """
    front, asked = outcome.front, outcome.findings.asked
    if front is None or asked.budget is None:
        return None
    j = outcome.findings.heldout.classes.index(unmet.name)
    base = front["base"]["per_class"]
    least = unmet.asked if unmet.criterion == "minimum_accuracy" else base[j] - unmet.asked
    done = getattr(outcome.iterations[0], "predicted", base)
    useless = (base, done)
    meeting = [
        point for point in front["points"] if point["per_class"][j] >= least and point["per_class"] not in useless
    ]
    if not meeting:
        return None
    budget = asked.budget
    best = min(meeting, key=lambda point: (point["objective"] != asked.aim, abs(point["budget"] - budget)))
    accuracy = f"{100 * best['per_class'][j]:.1f} %"
    return f"target={best['objective']!r}, budget={best['budget']:g} is predicted to meet it ({accuracy})"
