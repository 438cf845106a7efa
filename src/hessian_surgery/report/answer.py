"""What changed, what it costs and what simpler would do: a section of a page."""

from hessian_surgery.evidence.costs import cost_lines
from hessian_surgery.evidence.simpler import simpler_rows, simpler_sentence
from hessian_surgery.markup import minus, table, text
from hessian_surgery.operation.answer_text import CHANGED, COSTS, SIMPLER, changed_lines, only_biases
from hessian_surgery.operation.findings import Findings
from hessian_surgery.report.page import Section


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
