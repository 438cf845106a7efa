"""The section about classes: each before and after; of many, groups, a search, the most changed."""

from collections.abc import Sequence

from hessian_surgery.evidence.deciles import MOST, most_changed
from hessian_surgery.evidence.metrics import Metrics
from hessian_surgery.evidence.paired_tests import ClassTest
from hessian_surgery.markup import (
    class_scale,
    folded,
    minus,
    name,
    points,
    scale_floor,
    table,
    text,
    with_interval,
)
from hessian_surgery.report import page_charts
from hessian_surgery.report.class_search import class_data, search_box
from hessian_surgery.report.deciles import decile_note, group_name
from hessian_surgery.report.figure_data import weakest_first
from hessian_surgery.report.markdown import summary_rows
from hessian_surgery.report.page import Section
from hessian_surgery.report.run import Run

# Tables of classes below each other have columns of one width.
ALIGNED = "classes aligned"
COLUMNS = ("images", "before %", "after %", "change pp", "significant")


def classes_section(run: Run) -> Section:
    """Every class if there are few; of many, the ten groups, a search and the most changed."""
    before, after = run.findings.heldout.metrics()
    floor = scale_floor([*before.interval, *after.interval])
    shown = _many(run, before, after, floor) if run.findings.many else _every(run, before, after, floor)
    title = "Classes, before and after" if run.findings.many else "Each class, before and after"
    return Section("classes", title, shown + folded("All figures over the classes", _summary(run)))


def _every(run: Run, before: Metrics, after: Metrics, floor: float) -> str:
    order = weakest_first(before.per_class)
    return _legend() + _listed(run, order, before, after, floor, "Accuracy of each class, weakest first")


def _many(run: Run, before: Metrics, after: Metrics, floor: float) -> str:
    tests = run.findings.tests.per_class
    gained, lost = most_changed(before.per_class, after.per_class, MOST)
    parts = [
        _legend(),
        _groups(run),
        search_box("find", "Find a class by its name"),
        f'<div id="found" hidden>{_template(floor)}</div>',
    ]
    for chosen, word in ((gained, "gained"), (lost, "lost")):
        if chosen:
            caption = f"The {len(chosen)} of {len(run.classes):,} classes that {word} most"
            parts.append(_listed(run, chosen, before, after, floor, caption))
        else:
            parts.append(f"<p>No class {word}.</p>")
    return "".join(parts) + class_data(run.classes, after, floor, before, tests)


def _listed(run: Run, order: Sequence[int], before: Metrics, after: Metrics, floor: float, caption: str) -> str:
    """A table of some classes, or of all."""
    kind = ALIGNED if run.findings.many else "classes"
    tests = run.findings.tests.per_class
    rows = []
    for j in order:
        (low0, high0), (low1, high1) = before.interval[j], after.interval[j]
        old = before.per_class[j]
        new = after.per_class[j]
        sign, words = significance(tests[j])
        rows.append(
            (
                name(run.classes[j]),
                page_charts.interval_row(floor, (low1, new, high1), (low0, old, high0), sign),
                f"{before.count[j]:,}",
                with_interval(old, (low0, high0)),
                with_interval(new, (low1, high1)),
                f'<span class="{sign}">{points(new - old)}</span>',
                words,
            )
        )
    return table(("class", class_scale(floor), *COLUMNS), rows, caption, kind)


def _template(floor: float) -> str:
    """A table whose one row the script copies and fills for each class that it finds."""
    nothing = (0.0, 0.0, 0.0)
    drawn = page_charts.interval_row(floor, nothing, nothing)
    accuracy = with_interval(0.0, (0.0, 0.0))
    row = (name(""), drawn, "", accuracy, accuracy, "<span></span>", "<span></span>")
    return table(("class", class_scale(floor), *COLUMNS), [row], "Classes found", ALIGNED)


def _groups(run: Run) -> str:
    groups = run.findings.deciles
    floor = scale_floor(ends for group in groups for ends in (group.before_interval, group.after_interval))
    rows = []
    for group in groups:
        (low0, high0), (low1, high1) = group.before_interval, group.after_interval
        low, high = group.change.interval
        sign = "up" if low > 0 else "down" if high < 0 else "same"
        rows.append(
            (
                group_name(group, len(groups)),
                page_charts.interval_row(floor, (low1, group.after, high1), (low0, group.before, high0), sign),
                f"{len(group.members)}",
                with_interval(group.before, group.before_interval, 1),
                with_interval(group.after, group.after_interval, 1),
                f'<span class="{sign}">{points(group.change.difference)}</span>',
                f"[{points(low)}, {points(high)}]",
            )
        )
    head = ("group", class_scale(floor), "classes", "before %", "after %", "change pp", "95 % interval")
    note = f'<p class="note">{text(decile_note(run.findings))}</p>'
    return note + table(head, rows, "Ten groups of classes, weakest first", ALIGNED)


def _legend() -> str:
    return (
        f'<p class="note">{_key("was", 3.5)} before {_key("is", 4.5)} after; lines are 95 % intervals (Wilson). '
        "▲ and ▼ mark significant changes by an exact McNemar test, with Holm's correction for testing every "
        "class.</p>"
    )


def _key(kind: str, radius: float) -> str:
    """A mark of the table, for the line that explains it."""
    drawn = f'<line class="{kind}" x1="1" x2="25" y1="6" y2="6"/><circle class="{kind}" cx="13" cy="6" r="{radius}"/>'
    return f'<svg class="key" viewBox="0 0 26 12" aria-hidden="true">{drawn}</svg>'


def significance(test: ClassTest) -> tuple[str, str]:
    """Say whether a class changed significantly: "up", "down" or "same", and the same as HTML."""
    if not test.claim:
        return "same", "too few to tell"
    p = f"p = {test.p_holm:.1g}" if test.p_holm >= 1e-4 else "p &lt; 0.0001"
    if test.p_holm >= 0.05:
        return "same", f'<span class="same">no, {p}</span>'
    sign, shape = ("up", "▲") if test.gained > test.lost else ("down", "▼")
    return sign, f"<strong>{shape} yes, {p}</strong>"


def _summary(run: Run) -> str:
    rows = [(text(label), *(minus(text(cell)) for cell in row)) for label, *row in summary_rows(run.findings)]
    return table(("", "before", "after", "change [95 % interval]"), rows, "All classes together", "numbers stacked")
