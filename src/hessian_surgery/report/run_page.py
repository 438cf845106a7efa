"""The page of an operation: verdict, promises, classes, explorer, flows, spectrum, iterations."""

from typing import Any

from hessian_surgery.evidence.paired_tests import Flow
from hessian_surgery.markup import (
    folded,
    name,
    percent,
    points,
    side_by_side,
    table,
    text,
    tiles,
    warning_list,
)
from hessian_surgery.operation.answer_text import only_biases
from hessian_surgery.report import page_charts
from hessian_surgery.report.answer import changed_section
from hessian_surgery.report.classes import classes_section
from hessian_surgery.report.comparison_page import front_section
from hessian_surgery.report.explorer import explorer
from hessian_surgery.report.figure_data import make_convergence
from hessian_surgery.report.markdown import SUMMARY, summary_figures
from hessian_surgery.report.page import Section, make_page
from hessian_surgery.report.promises import promises_section
from hessian_surgery.report.provenance import facts_of, reproduction
from hessian_surgery.report.responses import responses_section
from hessian_surgery.report.run import Run
from hessian_surgery.report.spectrum import spectrum_section

SIGNS = {"good": "▲", "mixed": "◆", "bad": "▼", "plain": "●"}
# Flows of this many classes are shown, the others are folded.
SHOWN_FLOWS = 12


def run_page(run: Run, comparison: dict[str, Any] | None = None) -> str:
    """Make the whole page.

    Args:
        run: the operation.
        comparison: the contents of a `compare.json` whose front the page shows too.
    """
    findings = run.findings
    sections = [promises_section(findings.promises, findings.criteria)] if findings.promises else []
    sections += [changed_section(findings), _warnings(run), classes_section(run)]
    if run.result["front"]:
        sections.append(explorer(run))
    sections += [_flows(run), responses_section(run.responses, only_biases(findings))]
    if run.spikes:
        sections.append(spectrum_section(run.spikes, run.tolerance))
    sections.append(_iterations(run))
    if comparison:
        sections.append(front_section(comparison, f"<p>{text(comparison['advice']['sentence'])}</p>"))
    sections = [Section(own.place, findings.said(own.title), findings.said(own.body)) for own in sections]
    inputs = run.config["inputs"]
    sections.append(reproduction("operate", inputs, facts_of(run.result), run.hashes))
    known = [str(inputs[key]) for key in ("model", "checkpoint", "data") if key in inputs]
    known = known or [run.result["model"]] if "model" in run.result else known
    named = " · ".join([*known, *([f"{run.date} UTC"] if run.date else [])])
    return make_page(
        "Operation report", f'<p class="subject">{text(named)}</p>' + findings.said(_opening(run)), sections
    )


def _opening(run: Run) -> str:
    """The headline, the same in plain words, the verdict's sentence, and four figures."""
    verdict = run.findings.verdict
    figures = {}
    for key, (before, after) in summary_figures(run.findings.heldout).items():
        label = SUMMARY[key]
        change = getattr(run.findings.tests, key)
        low, high = change.interval
        title, unit = (label, "pp") if key == "sigma" else (label.capitalize(), "%")
        figures[title] = (
            f'<span class="from">{percent(before)}</span> '
            f'<span aria-hidden="true">→</span><span class="hidden">to</span> '
            f"<strong>{percent(after)}</strong> {unit}"
            f"<small>{points(change.difference)} pp [{points(low)}, {points(high)}]</small>"
        )
    images = run.findings.note or f"{len(run.findings.heldout.labels):,} held-out images, which nothing was fitted to."
    return (
        f'<div class="verdict {verdict.tone}"><p><span class="sign" aria-hidden="true">{SIGNS[verdict.tone]}</span> '
        f"{text(verdict.headline)}</p><p>{text(run.findings.plain)}</p></div>"
        f'<p class="sentence">{text(verdict.sentence)}</p>{tiles(figures)}'
        f'<p class="note">{text(images)} Brackets are 95 % intervals of the change.</p>'
    )


def _warnings(run: Run) -> Section:
    """What limits the conclusions, and how much of the gain held-out images confirm."""
    lines = [text(warning) for warning in run.findings.warnings]
    calibration = run.findings.calibration
    heldout = run.findings.heldout
    measured = [summary_figures(images) for images in (heldout, calibration)]
    rows = []
    for key, label in SUMMARY.items():
        cells = [label]
        for before, after in (figures[key] for figures in measured):
            cells += [f"{percent(before)} → {percent(after)}", points(after - before)]
        rows.append(cells)
    head = ("", "held out, %", "change pp", "calibration, %", "change pp")
    sizes = _sizes(run)
    body = warning_list(lines) + table(head, rows, sizes, "numbers stacked")
    return Section("warnings", "Warnings, and calibration against held-out images", body)


def _sizes(run: Run) -> str:
    """How many images there are in each part, and how many training images were compared."""
    findings = run.findings
    sizes = f"{len(findings.calibration.labels):,} calibration images, {len(findings.heldout.labels):,} held-out images"
    if findings.folds is not None:
        sizes = f"the delivered model on all {len(findings.heldout.labels):,} images, and each image held out in turn"
    split = run.result["split"]
    if "compared" not in split:
        return sizes
    return f"{sizes}; {split['compared']:,} of {split['training']:,} training images were compared with these"


def _flows(run: Run) -> Section:
    flows = sorted(run.findings.tests.flows, key=lambda flow: -(flow.gained + flow.lost))
    if not flows:
        return Section("flows", "Where answers moved", "<p>No image changed between right and wrong.</p>")
    most = max(max(flow.gained, flow.lost) for flow in flows)
    head = ("class", "became wrong", "became right", "wrong answers now", "wrong answers before")
    rows = [_flow_row(flow, most) for flow in (flows[:SHOWN_FLOWS] if run.findings.many else flows)]
    body = "<p>Images whose answer became wrong or right, and the wrong answers that they get now or got before.</p>"
    body += table(head, rows[:SHOWN_FLOWS], "Confusion flows on the held-out images, most changed first", "flows")
    if len(flows) > len(rows):
        body += f'<p class="note">{len(rows)} of {len(flows):,} classes that changed; result.json has all.</p>'
    elif len(rows) > SHOWN_FLOWS:
        rest = table(head, rows[SHOWN_FLOWS:], "The classes that changed less", "flows")
        body += folded(f"{len(rows) - SHOWN_FLOWS} classes that changed less", rest)
    return Section("flows", "Where answers moved", body)


def _flow_row(flow: Flow, most: int) -> tuple[str, ...]:
    def listed(counts: dict[str, int]) -> str:
        ranked = sorted(counts.items(), key=lambda item: -item[1])
        parts = [f"{count} × {name(title)}" for title, count in ranked[:4]]
        others = sum(count for _, count in ranked[4:])
        return ", ".join(parts + ([f"{others} × others"] if others else []))

    lost = page_charts.flow_bar(flow.lost, most, "down")
    gained = page_charts.flow_bar(flow.gained, most, "up")
    return name(flow.name), lost, gained, listed(flow.lost_to), listed(flow.gained_from)


def _iterations(run: Run) -> Section:
    records = run.result["iterations"]
    series = make_convergence(run.result["before"]["calibration"]["sigma"], records)
    rows = [
        (
            f"{record['iteration']}" if run.findings.folds is None else f"{record['fold']}, {record['iteration']}",
            outcome,
            percent(record["candidate_sigma"], 2),
            percent(record["sigma"], 2),
            percent(record["worst"]),
            percent(record["accuracy"], 2),
            f"{length:.3g}",
            f"{sum(record['seconds'].values()):.1f}",
        )
        for record, outcome, length in zip(records, series.outcomes, series.lengths, strict=True)
    ]
    head = (
        "iteration" if run.findings.folds is None else "fold, iteration",
        "outcome",
        "σ tried, pp",
        "σ kept, pp",
        "worst class %",
        "accuracy %",
    )
    listed = table((*head, series.length_label, "seconds"), rows, "Iterations", "numbers")
    if run.findings.folds is not None:
        return Section("iterations", "Operations of the folds", f"<p>{text(run.result['ended'])}</p>" + listed)
    drawn = side_by_side(page_charts.convergence(series), page_charts.step_lengths(series))
    legend = (
        '<p class="note">Filled marks were accepted; crosses and hollow bars were rolled back. '
        "Iteration 0 is the model as it is.</p>"
    )
    body = f"<p>{text(run.result['ended'])}</p>" + drawn + legend + folded("Iterations as a table", listed)
    return Section("iterations", "Iterations: σ and steps", body)
