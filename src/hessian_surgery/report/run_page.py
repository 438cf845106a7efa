"""The page of a finished operation: verdict, classes, flows, S, spectrum, convergence, and how to do it again."""

from typing import Any

from hessian_surgery.evidence.paired_tests import ClassTest, Flow
from hessian_surgery.report import charts
from hessian_surgery.report.comparison_page import front_section
from hessian_surgery.report.explorer import explorer
from hessian_surgery.report.markdown import SUMMARY, summary_rows
from hessian_surgery.report.markup import (
    class_scale,
    folded,
    minus,
    name,
    percent,
    points,
    scale_floor,
    side_by_side,
    table,
    text,
    warning_list,
    with_interval,
)
from hessian_surgery.report.page import Section, make_page
from hessian_surgery.report.provenance import facts_of, reproduction
from hessian_surgery.report.run import Run, direction_names
from hessian_surgery.report.sensitivity import sensitivity_section, spectrum_section

SIGNS = {"better": "▲", "worse": "▼", "no detectable change": "●"}
# Classes whose flows are shown; the others are behind a line.
SHOWN_FLOWS = 12


def run_page(run: Run, comparison: dict[str, Any] | None = None) -> str:
    """The whole page; `comparison` is the contents of `compare.json`, whose front is then shown as well."""
    first = run.result["iterations"][0]
    sections = [
        _warnings(run),
        _classes(run),
        *explorer(run),
        _flows(run),
        sensitivity_section(first["sensitivity"], direction_names(run), run.classes, run.unit),
        *spectrum_section(first["eigenvalues"], first["residuals"], run.config["tolerance"]),
        _iterations(run),
        *([front_section(comparison, f"<p>{text(comparison['advice']['sentence'])}</p>")] if comparison else []),
        reproduction("operate", run.config["inputs"], facts_of(run.result), run.hashes),
    ]
    inputs = run.config["inputs"]
    named = " · ".join(str(inputs[key]) for key in ("model", "checkpoint", "data") if key in inputs)
    return make_page("Operation report", f'<p class="subject">{text(named)}</p>' + _opening(run), sections)


def _opening(run: Run) -> str:
    """The verdict in one sentence, the criteria where there were some, and four figures."""
    verdict = run.findings.verdict
    before, after = run.findings.heldout.metrics()
    tiles = []
    for key, label in SUMMARY.items():
        change = getattr(run.findings.tests, key)
        low, high = change.interval
        title, unit = (label, "pp") if key == "sigma" else (label.capitalize(), "%")
        tiles.append(
            f'<div><dt>{text(title)}</dt><dd><span class="from">{percent(getattr(before, key))}</span> '
            f'<span aria-hidden="true">→</span><span class="hidden">to</span> '
            f"<strong>{percent(getattr(after, key))}</strong> {unit}"
            f"<small>{points(change.difference)} pp [{points(low)}, {points(high)}]</small></dd></div>"
        )
    return (
        f'<p class="verdict {verdict.outcome.replace(" ", "-")}"><span class="sign" aria-hidden="true">'
        f"{SIGNS[verdict.outcome]}</span> {text(verdict.sentence)}</p>{_acceptance(run)}"
        f'<dl class="tiles">{"".join(tiles)}</dl><p class="note">{len(run.findings.heldout.labels):,} held-out images, '
        "which nothing was fitted to; brackets are 95 % intervals of the change.</p>"
    )


def _acceptance(run: Run) -> str:
    found = run.result.get("acceptance")
    if found is None:
        return ""
    if not found["failed"]:
        return '<p class="accepted">✓ Every acceptance criterion is met.</p>'
    failed = "".join(f"<li>{text(line)}</li>" for line in found["failed"])
    return f'<div class="refused"><p>✗ Acceptance criteria that are not met:</p><ul>{failed}</ul></div>'


def _warnings(run: Run) -> Section:
    """What limits what can be said, and how far the gain carried over from the calibration images."""
    listed = [text(warning) for warning in run.findings.warnings]
    gap = halves_gap(run)
    listed += [text(gap)] if gap else []
    body = warning_list(listed)
    rows = []
    parts = {"decided on": run.findings.calibration, "held out": run.findings.heldout}
    for key, label in SUMMARY.items():
        cells = [f"{label}"]
        for images in parts.values():
            before, after = (getattr(metrics, key) for metrics in images.metrics())
            cells += [f"{percent(before)} → {percent(after)}", points(after - before)]
        rows.append(cells)
    head = ("", "decided on, %", "change pp", "held out, %", "change pp")
    counts = [len(images.labels) for images in parts.values()]
    sizes = f"{counts[0]:,} calibration images, {counts[1]:,} held out"
    return Section("warnings", "Warnings, and the two halves", body + table(head, rows, sizes, "numbers"))


def halves_gap(run: Run) -> str | None:
    """That less was gained on held-out images than on those decided on, where that is more than noise."""
    before, after = run.findings.calibration.metrics()
    decided, test = after.sigma - before.sigma, run.findings.tests.sigma
    if decided >= test.interval[0]:
        return None
    return (
        f"gap between the halves: σ changed by {100 * decided:+.1f} pp on the calibration images and by {test} on the "
        "held-out ones; the difference is fitting to the former"
    )


def _classes(run: Run) -> Section:
    before, after = run.findings.heldout.metrics()
    tests = run.findings.tests.per_class
    floor = scale_floor([*before.interval, *after.interval])
    rows = []
    for j in sorted(range(len(run.classes)), key=lambda j: before.per_class[j]):
        (low0, high0), (low1, high1) = before.interval[j], after.interval[j]
        old, new = before.per_class[j], after.per_class[j]
        sign, words = significance(tests[j])
        rows.append(
            (
                name(run.classes[j]),
                charts.interval_row(floor, (low1, new, high1), (low0, old, high0), sign),
                f"{before.count[j]:,}",
                with_interval(old, (low0, high0)),
                with_interval(new, (low1, high1)),
                f'<span class="{sign}">{points(new - old)}</span>',
                words,
            )
        )
    head = ("class", class_scale(floor), "images", "before %", "after %", "change pp", "significant")
    legend = (
        f'<p class="note">{_key("was", 3.5)} before {_key("is", 4.5)} after; lines are Wilson\'s 95 % intervals. '
        "▲ and ▼ mark changes that an exact McNemar test finds, corrected (Holm) for testing every class.</p>"
    )
    body = legend + table(head, rows, "Accuracy of each class, weakest first", "classes")
    body += folded("All figures over the classes", _summary(run))
    return Section("classes", "Each class, before and after", body)


def _key(kind: str, radius: float) -> str:
    """A mark as it stands in the table, for the line that explains it."""
    drawn = f'<line class="{kind}" x1="1" x2="25" y1="6" y2="6"/><circle class="{kind}" cx="13" cy="6" r="{radius}"/>'
    return f'<svg class="key" viewBox="0 0 26 12" aria-hidden="true">{drawn}</svg>'


def significance(test: ClassTest) -> tuple[str, str]:
    """What a class's test amounts to: `up`, `down` or `same`, and words for it."""
    if not test.claim:
        return "same", "too few images"
    p = f"p = {test.p_holm:.1g}" if test.p_holm >= 1e-4 else "p &lt; 0.0001"
    if test.p_holm >= 0.05:
        return "same", f'<span class="same">no, {p}</span>'
    sign, shape = ("up", "▲") if test.gained > test.lost else ("down", "▼")
    return sign, f"<strong>{shape} yes, {p}</strong>"


def _summary(run: Run) -> str:
    rows = [(text(label), *(minus(text(cell)) for cell in row)) for label, *row in summary_rows(run.findings)]
    return table(("", "before", "after", "change [95 % interval]"), rows, "All classes together", "numbers")


def _flows(run: Run) -> Section:
    flows = sorted(run.findings.tests.flows, key=lambda flow: -(flow.gained + flow.lost))
    if not flows:
        return Section("flows", "Where answers moved", "<p>No image changed between right and wrong.</p>")
    most = max(max(flow.gained, flow.lost) for flow in flows)
    head = ("class", "became wrong", "became right", "wrong now: answered as", "right now: answered before as")
    rows = [_flow_row(flow, most) for flow in flows]
    body = "<p>Images whose answer became right or ceased to be, and which other answer they came from or went to.</p>"
    body += table(head, rows[:SHOWN_FLOWS], "Confusion flows on the held-out images, most changed first", "flows")
    if len(rows) > SHOWN_FLOWS:
        rest = table(head, rows[SHOWN_FLOWS:], "The classes that changed less", "flows")
        body += folded(f"{len(rows) - SHOWN_FLOWS} classes that changed less", rest)
    return Section("flows", "Where answers moved", body)


def _flow_row(flow: Flow, most: int) -> tuple[str, ...]:
    def listed(counts: dict[str, int]) -> str:
        ranked = sorted(counts.items(), key=lambda item: -item[1])
        parts = [f"{count} × {name(title)}" for title, count in ranked[:4]]
        others = sum(count for _, count in ranked[4:])
        return ", ".join(parts + ([f"{others} × others"] if others else []))

    bars = charts.flow_bar(flow.lost, most, "down"), charts.flow_bar(flow.gained, most, "up")
    return name(flow.name), *bars, listed(flow.lost_to), listed(flow.gained_from)


def _iterations(run: Run) -> Section:
    records, base = run.result["iterations"], run.result["before"]["calibration"]
    rows = [
        (
            f"{record['iteration']}",
            outcome_of(record),
            percent(record["candidate_sigma"], 2),
            percent(record["sigma"], 2),
            percent(record["worst"]),
            percent(record["accuracy"], 2),
            f"{record['alpha_max']:.3g}",
            f"{sum(record['seconds'].values()):.1f}",
        )
        for record in records
    ]
    head = ("iteration", "outcome", "σ tried, pp", "σ kept, pp", "worst class %", "accuracy %", "amplitude", "seconds")
    drawn = charts.convergence(base, records), charts.amplitudes(records)
    legend = '<p class="note">Filled: accepted. Crosses and hollow bars: rolled back. 0 is the model as it is.</p>'
    body = side_by_side(*drawn) + legend + folded("Iterations as a table", table(head, rows, "Iterations", "numbers"))
    return Section("iterations", "Iterations: convergence and amplitude", body)


def outcome_of(record: dict[str, Any]) -> str:
    """What became of an iteration."""
    if record["accepted"]:
        return "accepted"
    return "rolled back" if record["alpha_max"] > 0 else "no step foreseen to gain enough"
