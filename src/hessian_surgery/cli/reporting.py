"""`report` as a command: a finished run again, in the terminal, as Markdown, JSON or a page."""

from typing import Any

from rich.console import Console

from hessian_surgery.cli.output import print_json, print_notes
from hessian_surgery.cli.tables import print_findings
from hessian_surgery.errors import InputError
from hessian_surgery.operation.outcome import load_findings
from hessian_surgery.report.figure_files import run_figures, save_figures
from hessian_surgery.report.markdown import to_markdown
from hessian_surgery.report.run import load_run
from hessian_surgery.report.write_report import write_report


def report_given(given: dict[str, Any]) -> None:
    """Show or write what a command's options ask for."""
    folder = given["run"]
    if given["comparison"] is not None and not given["html"]:
        raise InputError(f"compare: got {given['comparison']}, but its front is shown in the page only; add --html")
    if given["figures"]:
        save_figures(given["figures"], run_figures(load_run(folder)))
        print_notes([f"figures: {given['figures']}"])
    if given["html"]:
        print_notes([f"report: {write_report(folder, given['comparison'])}"])
        if not (given["as_json"] or given["markdown"]):
            return
    findings = load_findings(folder)
    if given["as_json"]:
        print_json({"verdict": vars(findings.verdict), "tests": findings.tests.as_dict()})
    elif given["markdown"]:
        print(to_markdown(findings), end="")
    else:
        print_findings(Console(), findings)
