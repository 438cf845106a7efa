"""What was asked for, and whether held-out images show it: in lines, and as a section."""

from collections import Counter
from collections.abc import Sequence

from hessian_surgery.evidence.deciles import MANY_CLASSES
from hessian_surgery.evidence.paired_tests import FEW_IMAGES
from hessian_surgery.evidence.promises import Promise
from hessian_surgery.report.markup import folded, minus, name, table, text
from hessian_surgery.report.page import Section

SIGNS = {"reached": "✓", "kept": "✓", "missed": "✗", "broken": "✗", "cannot be told": "?"}
# So many promises are shown, the others are folded.
SHOWN = 12
# So many protected classes of a state are named in a line.
NAMED = 3


def promise_lines(promises: Sequence[Promise]) -> list[str]:
    """One line for each target and the budget, and one for all protected classes together."""
    limits = [promise for promise in promises if promise.promise == "limit"]
    lines = [f"{p.wanted}: {p.state}, {p.figure}" for p in promises if p.promise != "limit"]
    if limits:
        states = dict.fromkeys(promise.state for promise in limits)
        parts = [_group(state, [p for p in limits if p.state == state]) for state in states]
        lines.append(f"protected classes, at most {100 * limits[0].asked:.1f} pp lost: {'; '.join(parts)}")
    return lines


def promises_section(promises: Sequence[Promise]) -> Section:
    """A table of all promises: those that were missed or broken first, then what cannot be told.

    Of many, targets and the budget come before the protected classes.
    """
    ranked = sorted(promises, key=lambda promise: "✗?✓".index(SIGNS[promise.state]))
    if len(ranked) > MANY_CLASSES:
        ranked.sort(key=lambda promise: promise.promise == "limit")
    rows = [
        (
            "accuracy" if promise.name is None else name(promise.name),
            f"reach {100 * promise.asked:g} %"
            if promise.promise == "target"
            else f"lose at most {100 * promise.asked:.3g} pp",
            minus(text(promise.figure)),
            f"{SIGNS[promise.state]} {promise.state}",
        )
        for promise in (ranked if len(ranked) <= MANY_CLASSES else ranked[:SHOWN])
    ]
    head = ("", "asked", "measured [interval]", "held-out images say")
    body = (
        '<p class="note">A promise is kept or broken only if the whole interval says so; each end of a class\'s '
        f"interval holds in 95 of 100 cases. Nothing can be told of classes with fewer than {FEW_IMAGES} images.</p>"
    )
    body += table(head, rows[:SHOWN], "What was asked for", "numbers")
    if len(ranked) > len(rows):
        rest = Counter(promise.state for promise in ranked[SHOWN:])
        listed = ", ".join(f"{count:,} {state}" for state, count in rest.items())
        body += f'<p class="note">Of the other {len(ranked) - SHOWN:,}: {listed}. result.json has each.</p>'
    elif len(rows) > SHOWN:
        body += folded(f"{len(rows) - SHOWN} more", table(head, rows[SHOWN:], "The other protected classes", "numbers"))
    return Section("asked", "What was asked for", body)


def _group(state: str, promises: list[Promise]) -> str:
    if state == "kept":
        return f"{len(promises)} kept"
    named = ", ".join(f"{promise.name} {promise.figure}" for promise in promises[:NAMED])
    more = f" and {len(promises) - NAMED} more" if len(promises) > NAMED else ""
    return f"{len(promises)} {state} ({named}{more})"
