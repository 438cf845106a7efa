"""`hessian-surgery report`: show a finished run in the terminal, as Markdown, JSON or a page."""

from hessian_surgery.cli.output import notes, print_json, print_notes, print_text, results
from hessian_surgery.cli.run_options import ReportOptions
from hessian_surgery.cli.tables import print_findings
from hessian_surgery.errors import InputError
from hessian_surgery.operation.outcome import load_findings, read_result
from hessian_surgery.report.figure_files import run_figures, save_figures
from hessian_surgery.report.markdown import to_markdown
from hessian_surgery.report.run import load_run
from hessian_surgery.report.write_report import write_report
from hessian_surgery.stored import blamed_on


def report(options: ReportOptions) -> None:
    """Show a finished run; every statistic is computed again from the stored predictions."""
    if options.comparison is not None and not options.html:
        raise InputError(f"compare: got {options.comparison}, but only the page shows a front; add --html")
    if options.figures:
        with blamed_on(f"run: {options.run}"):
            drawn = run_figures(load_run(options.run))
            save_figures(options.figures, drawn)
        print_notes([f"figures: {options.figures}"])
    if options.html:
        print_notes([f"report: {write_report(options.run, options.comparison)}"])
        if not (options.as_json or options.markdown):
            return
    findings = load_findings(options.run)
    ended = read_result(options.run)["ended"]
    if options.as_json:
        print_json(findings.as_dict() | ({"note": findings.note} if findings.note else {}))
    elif options.markdown:
        with blamed_on(f"run: {options.run}"):
            text = to_markdown(findings, ended)
        print_text(text)
    else:
        print_findings(results(), findings)
        notes().print(findings.said(ended), highlight=False, markup=False)
