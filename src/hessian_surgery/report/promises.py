"""What was asked for, and whether held-out images show it: a section of a page."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hessian_surgery.evidence.criteria import SHOWN, CheckedCriterion
from hessian_surgery.evidence.deciles import MANY_CLASSES
from hessian_surgery.evidence.paired_tests import FEW_IMAGES
from hessian_surgery.evidence.promises import SIGNS, Promise
from hessian_surgery.markup import folded, minus, name, table, text
from hessian_surgery.report.page import Section

# How the table names an aim.
AIM_CELLS = {"sigma": ("σ without sampling noise", "lower it"), "worst": ("worst class", "raise it")}


def promises_section(promises: Sequence[Promise], criteria: Sequence[CheckedCriterion] = ()) -> Section:
    """A table of all promises and criteria: the aim, targets and the budget, then the others.

    Of each kind, what is not met comes first, then what cannot be told.
    """
    ranked = [_promise_row(promise) for promise in promises] + [_criterion_row(one) for one in criteria]
    ranked.sort(key=lambda row: (row.later, "✗?✓".index(row.cells[-1][0])))
    rows = [row.cells for row in (ranked if len(ranked) <= MANY_CLASSES else ranked[:SHOWN])]
    head = ("", "asked", "measured [interval]", "held-out images say")
    body = (
        '<p class="note">A promise is kept or broken only if the whole interval says so; each end of a class\'s '
        "interval holds in 95 of 100 cases, so it is narrower than a 95 % interval elsewhere on this page. "
        f"Nothing can be told of classes with fewer than {FEW_IMAGES} images. "
        "Acceptance criteria are met or not by the measured value.</p>"
    )
    body += table(head, rows[:SHOWN], "What was asked for", "numbers asked")
    if len(ranked) > len(rows):
        rest = Counter(row.state for row in ranked[SHOWN:])
        listed = ", ".join(f"{count:,} {state}" for state, count in rest.items())
        body += f'<p class="note">Of the other {len(ranked) - SHOWN:,}: {listed}. result.json has each.</p>'
    elif len(rows) > SHOWN:
        others = table(head, rows[SHOWN:], "The rest of what was asked for", "numbers asked")
        body += folded(f"{len(rows) - SHOWN} more", others)
    return Section("asked", "What was asked for, and is it met?", body + _verdict_on(criteria))


@dataclass(frozen=True)
class AskedRow:
    """A row of the table: its state in words, its cells, and whether it comes after the aim."""

    state: str
    cells: tuple[str, str, str, str]
    later: bool


def _promise_row(promise: Promise) -> AskedRow:
    wanted = f"lose at most {100 * promise.asked:.3g} pp"
    if promise.promise == "target":
        wanted = f"reach {100 * promise.asked:g} %"
    title = "accuracy" if promise.name is None else name(promise.name)
    if promise.promise in AIM_CELLS:
        title, wanted = AIM_CELLS[promise.promise]
    measured = minus(text(promise.bare_figure))
    state = f"{SIGNS[promise.state]} {promise.state}"
    return AskedRow(promise.state, (title, wanted, measured, state), promise.promise == "limit")


def _criterion_row(one: CheckedCriterion) -> AskedRow:
    least = one.criterion == "minimum_accuracy"
    bound = f"at least {100 * one.asked:g} %" if least else f"lose at most {100 * one.asked:g} pp"
    state = "met" if one.met else "not met"
    cells = (name(one.name), f"criterion: {bound}", minus(text(one.figure)), f"{'✓' if one.met else '✗'} {state}")
    return AskedRow(state, cells, True)


def _verdict_on(criteria: Sequence[CheckedCriterion]) -> str:
    """Which acceptance criteria are not met, and options that may meet them where any are known."""
    if not criteria:
        return ""
    failed = [one for one in criteria if not one.met]
    if not failed:
        return "<p>✓ Every acceptance criterion is met.</p>"
    listed = "".join(f"<li>{text(one.failure + one.remedy)}</li>" for one in failed[:SHOWN])
    more = f"<li>{len(failed) - SHOWN:,} more</li>" if len(failed) > SHOWN else ""
    return f"<h3>✗ Acceptance criteria that are not met</h3><ul>{listed}{more}</ul>"
