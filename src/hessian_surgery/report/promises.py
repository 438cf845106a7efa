"""What was asked for, and whether held-out images show it: in lines, and as a section."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hessian_surgery.evidence.criteria import CheckedCriterion
from hessian_surgery.evidence.deciles import MANY_CLASSES
from hessian_surgery.evidence.paired_tests import FEW_IMAGES
from hessian_surgery.evidence.promises import Promise
from hessian_surgery.report.markup import folded, minus, name, table, text
from hessian_surgery.report.page import Section

SIGNS = {"reached": "✓", "kept": "✓", "missed": "✗", "broken": "✗", "cannot be told": "?"}
# How the table names an aim.
AIM_CELLS = {"sigma": ("σ without sampling noise", "lower it"), "worst": ("worst class", "raise it")}
# So many promises are shown, the others are folded.
SHOWN = 12
# So many protected classes of a state are named in a line.
NAMED = 3


def promise_lines(promises: Sequence[Promise]) -> list[str]:
    """One line for each target and the budget, and one for all protected classes together."""
    limits = [promise for promise in promises if promise.promise == "limit"]
    lines = [f"{SIGNS[p.state]} {p.wanted}: {p.state}, {p.figure}" for p in promises if p.promise != "limit"]
    if limits:
        states = dict.fromkeys(promise.state for promise in limits)
        parts = [_group(state, [p for p in limits if p.state == state]) for state in states]
        sign = next(sign for sign in "✗?✓" if any(SIGNS[state] == sign for state in states))
        lines.append(f"{sign} protected classes, at most {100 * limits[0].asked:.1f} pp lost: {'; '.join(parts)}")
    return lines


def criteria_lines(criteria: Sequence[CheckedCriterion]) -> list[str]:
    """One line for each acceptance criterion that is not met, and one for all that are."""
    failed = [one for one in criteria if not one.met]
    lines = [f"✗ criterion {one.wanted}: not met, {one.figure}{one.remedy}" for one in failed[:SHOWN]]
    if len(failed) > SHOWN:
        lines.append(f"✗ {len(failed) - SHOWN:,} more criteria: not met")
    met = len(criteria) - len(failed)
    return lines + ([f"✓ {met:,} of {len(criteria):,} acceptance criteria: met"] if met else [])


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
        f"interval holds in 95 of 100 cases. Nothing can be told of classes with fewer than {FEW_IMAGES} images. "
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
    measured = minus(text(promise.figure))
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


def _group(state: str, promises: list[Promise]) -> str:
    if state == "kept":
        return f"{len(promises)} kept"
    named = ", ".join(f"{promise.name} {promise.figure}" for promise in promises[:NAMED])
    more = f" and {len(promises) - NAMED} more" if len(promises) > NAMED else ""
    return f"{len(promises)} {state} ({named}{more})"
