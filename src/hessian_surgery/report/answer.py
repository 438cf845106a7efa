"""The answer first: asked and met, what changed, what it costs, what simpler would do."""

from hessian_surgery.evidence.costs import cost_lines
from hessian_surgery.evidence.simpler import simpler_rows, simpler_sentence
from hessian_surgery.operation.findings import Findings
from hessian_surgery.report.markup import minus, table, text
from hessian_surgery.report.page import Section
from hessian_surgery.report.promises import criteria_lines, promise_lines

ASKED, CHANGED, COSTS, SIMPLER = "Asked, and met?", "What changed", "What it costs", "What simpler would do"


def answer_parts(findings: Findings) -> list[tuple[str, list[str]]]:
    """The parts of the answer that are known: a title and lines of text each."""
    parts = [
        (ASKED, promise_lines(findings.promises) + criteria_lines(findings.criteria)),
        (CHANGED, changed_lines(findings)),
        (COSTS, cost_lines(findings.costs)),
        (SIMPLER, simpler_lines(findings)),
    ]
    return [(title, lines) for title, lines in parts if lines]


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


def changed_section(findings: Findings) -> Section:
    """What changed, what it costs and what simpler would do, for a page."""
    body = ""
    if findings.changed is not None or findings.temperature is not None:
        body += f"<h3>{CHANGED}</h3>{_listed(changed_lines(findings))}"
    body += f"<h3>{COSTS}</h3>{_listed(cost_lines(findings.costs))}"
    if findings.simpler is not None:
        only = only_biases(findings)
        body += f"<h3>{SIMPLER}</h3>{_listed([simpler_sentence(findings.simpler, only, findings.asked.aim)])}"
        if not only:
            rows = [tuple(minus(text(cell)) for cell in row) for row in simpler_rows(findings.simpler)]
            head = ("", "class bias", "this step", "difference [95 %]")
            body += table(head, rows, "This step beside a class bias, on the held-out images", "numbers stacked")
    return Section("changed", "What changed, and what it costs", body)


def _listed(lines: list[str]) -> str:
    return f'<ul class="said">{"".join(f"<li>{minus_signs(line)}</li>" for line in lines)}</ul>'


def minus_signs(line: str) -> str:
    """Text as HTML, with minus signs before its figures."""
    return text(line).replace(" -", " −").replace("[-", "[−")
