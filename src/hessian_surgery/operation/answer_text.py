"""The answer first: asked and met, what changed, what it costs, what simpler would do.

The same lines are in summaries, notebooks, Markdown, cards and the terminal.
"""

from typing import Any

from hessian_surgery.evidence.costs import cost_lines
from hessian_surgery.evidence.criteria import criteria_lines
from hessian_surgery.evidence.deciles import left_out, shown_classes
from hessian_surgery.evidence.promises import promise_lines
from hessian_surgery.evidence.simpler import simpler_rows, simpler_sentence
from hessian_surgery.markup import minus, name, percent, points, table, text, warning_list, with_interval
from hessian_surgery.operation.findings import Findings

ASKED, CHANGED, COSTS, SIMPLER = "Asked, and met?", "What changed", "What it costs", "What simpler would do"


def answer_parts(findings: Findings) -> list[tuple[str, list[str]]]:
    """The parts of the answer that are known: a title and lines of text each."""
    parts = [
        (ASKED, promise_lines(findings.promises) + criteria_lines(findings.criteria)),
        (CHANGED, changed_lines(findings)),
        (COSTS, cost_lines(findings.costs)),
        (SIMPLER, simpler_lines(findings)),
    ]
    return [(title, [findings.said(line) for line in lines]) for title, lines in parts if lines]


def changed_lines(findings: Findings) -> list[str]:
    """Which weights the step changed, and by what the head was divided after that."""
    lines = [] if findings.changed is None else [str(findings.changed)]
    if findings.temperature is not None:
        lines.append(
            f"recalibrated: then the head's weights and biases were divided by {findings.temperature:.4g}, one "
            "temperature fitted to the calibration images; no prediction changes by that"
        )
    return lines


def simpler_lines(findings: Findings) -> list[str]:
    """What a class bias under the same goal and limits does; nothing if none was fitted."""
    if findings.simpler is None:
        return []
    only = only_biases(findings)
    lines = [simpler_sentence(findings.simpler, only, findings.asked.aim)]
    if not only:
        rows = simpler_rows(findings.simpler)
        lines += [f"{label}: class bias {bias}, this step {own}, difference {gap}" for label, bias, own, gap in rows]
    return lines


def only_biases(findings: Findings) -> bool:
    """Whether the step is known to have moved nothing but the head's biases."""
    return findings.changed is not None and findings.changed.only_biases


def answer_text(findings: Findings) -> str:
    """The headline, the same in plain words, how folds judge, the answer, warnings, the verdict."""
    lines = [findings.verdict.headline, findings.plain, *([findings.note] if findings.note else [])]
    for title, said in answer_parts(findings):
        lines += [title, *(f"  {line}" for line in said)]
    return "\n".join([*lines, *(f"note: {warning}" for warning in findings.warnings), findings.verdict.sentence])


def class_rows(findings: Findings) -> list[dict[str, Any]]:
    """A dict of plain values for each class, in class order; accuracies are fractions."""
    before, after = findings.heldout.metrics()
    return [
        {
            "class": test.name,
            "count": before.count[j],
            "before": before.per_class[j],
            "after": after.per_class[j],
            "after_low": after.interval[j][0],
            "after_high": after.interval[j][1],
            "change": after.per_class[j] - before.per_class[j],
            "gained": test.gained,
            "lost": test.lost,
            "p_holm": test.p_holm if test.claim else None,
        }
        for j, test in enumerate(findings.tests.per_class)
    ]


def answer_html(findings: Findings) -> str:
    """The answer, a table of classes and the warnings, for a notebook."""
    verdict = findings.verdict
    parts = [f"<p><strong>{text(verdict.headline)}</strong> {text(findings.plain)}</p><p>{text(verdict.sentence)}</p>"]
    for title, said in answer_parts(findings):
        listed = "".join(f"<li>{text(line)}</li>" for line in said)
        parts.append(f"<p><strong>{title}</strong></p><ul>{listed}</ul>")
    return "".join([*parts, _class_table(findings), warning_list([text(warning) for warning in findings.warnings])])


def _class_table(findings: Findings) -> str:
    """The classes, weakest first; of many, those that changed most."""
    rows = class_rows(findings)
    shown = shown_classes([row["before"] for row in rows], [row["after"] for row in rows])
    cells = [
        (
            name(row["class"]),
            f"{row['count']:,}",
            percent(row["before"]),
            with_interval(row["after"], (row["after_low"], row["after_high"])),
            points(row["change"]),
            "too few to tell" if row["p_holm"] is None else minus(f"{row['p_holm']:.2g}"),
        )
        for row in (rows[j] for j in shown)
    ]
    caption = f"{len(findings.heldout.labels):,} held-out images"
    if len(shown) < len(rows):
        caption = f"{caption}; {left_out(len(shown), len(rows))}"
    head = ("class", "images", "before %", "after % [95 %]", "change pp", "p (Holm)")
    return findings.said(table(head, cells, caption))
