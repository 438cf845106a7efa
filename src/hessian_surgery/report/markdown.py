"""An operation as Markdown, for a colleague or a pull request."""

from collections.abc import Iterable

from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.evidence.deciles import left_out, shown_classes
from hessian_surgery.evidence.overfitting import noise_free_sigmas
from hessian_surgery.evidence.paired_tests import Flow, PairedTests
from hessian_surgery.operation.answer_text import answer_parts
from hessian_surgery.operation.findings import Findings
from hessian_surgery.plain_text import one_line
from hessian_surgery.report.deciles import HEAD, decile_note, decile_rows

SUMMARY = {
    "sigma": "σ without sampling noise",
    "worst": "worst class",
    "balanced_accuracy": "balanced",
    "accuracy": "accuracy",
}


def to_markdown(findings: Findings, ended: str) -> str:
    """Write the answer, the figures over all classes, each class, flows and warnings.

    Args:
        findings: what changed.
        ended: why the iterations ended.
    """
    images = findings.heldout
    tests = findings.tests
    before, after = images.metrics()
    judged = findings.note or f"{len(images.labels)} held-out images."
    lines = [f"**{plain(findings.verdict.headline)}.** {plain(findings.plain)}", ""]
    lines += [plain(findings.verdict.sentence), ""]
    for title, said in answer_parts(findings):
        lines += [f"**{title}**", "", *(f"- {plain(line)}" for line in said), ""]
    lines += [judged, "", plain(ended), ""]
    lines += ["| | before | after | change [95 % interval] |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in summary_rows(findings)] + [""]
    lines += _deciles(findings) if findings.many else []
    lines += [
        "| class | images | before % | after % [95 %] | change pp | detectable pp | p (Holm) |",
        "|---|" + "---:|" * 6,
    ]
    shown = shown_classes(before.per_class, after.per_class)
    for j in shown:
        test = tests.per_class[j]
        bottom, top = after.interval[j]
        lines.append(
            f"| {plain(images.classes[j])} | {before.count[j]} | {100 * before.per_class[j]:.1f} | "
            f"{100 * after.per_class[j]:.1f} [{100 * bottom:.0f}, {100 * top:.0f}] | "
            f"{100 * (after.per_class[j] - before.per_class[j]):+.1f} | {100 * test.detectable:.1f} | "
            f"{f'{test.p_holm:.2g}' if test.claim else 'too few to tell'} |"
        )
    if len(shown) < len(images.classes):
        lines += ["", left_out(len(shown), len(images.classes))]
    lines += ["", *(f"- {plain(str(flow))}" for flow in main_flows(tests))]
    lines += ["", *(f"> {plain(warning)}" for warning in findings.warnings)]
    return findings.said("\n".join(lines).rstrip() + "\n")


def summary_figures(images: BeforeAfter) -> dict[str, tuple[float, float]]:
    """The figures that `SUMMARY` names, before and after."""
    before, after = images.metrics()
    found = {name: (getattr(before, name), getattr(after, name)) for name in SUMMARY}
    return found | {"sigma": noise_free_sigmas(images)}


def summary_rows(findings: Findings) -> list[tuple[str, ...]]:
    """List the figures over all classes: label, before, after, change."""
    tests = findings.tests
    rows: list[tuple[str, ...]] = [
        (SUMMARY[name], *(f"{100 * value:.1f} %" for value in pair), str(getattr(tests, name)))
        for name, pair in summary_figures(findings.heldout).items()
    ]
    before, after = findings.heldout.metrics()
    rows.insert(1, ("σ as measured", *(f"{100 * metrics.sigma:.1f} %" for metrics in (before, after)), ""))
    old, new = tests.calibration_error
    rows.append(("calibration error", f"{100 * old:.1f} %", f"{100 * new:.1f} %", str(tests.calibration_change)))
    old, new = tests.nll
    low, high = tests.nll_change.interval
    change = f"{tests.nll_change.difference:+.3f} [{low:+.3f}, {high:+.3f}]"
    rows.append(("loss (nats)", f"{old:.3f}", f"{new:.3f}", change))
    rows.append(("predictions changed", "", f"{100 * tests.churn:.1f} %", ""))
    return rows


def _deciles(findings: Findings) -> list[str]:
    head = [f"| {' | '.join(HEAD)} |", "|---|" + "---:|" * (len(HEAD) - 1)]
    rows = [f"| {' | '.join(row)} |" for row in decile_rows(findings.deciles)]
    return [decile_note(findings), "", *head, *rows, ""]


def main_flows(tests: PairedTests) -> list[Flow]:
    """Choose the five classes with the most changed images."""
    return sorted(tests.flows, key=lambda flow: -(flow.gained + flow.lost))[:5]


def merge_budgets(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Rows of (name, budget, figures …); a method's budgets with the same figures share a row."""
    merged: list[tuple[str, ...]] = []
    for name, budget, *figures in rows:
        same = merged and merged[-1][0] == name and list(merged[-1][2:]) == figures
        first = merged.pop()[1].partition("–")[0] + "–" if same else ""
        merged.append((name, first + budget, *figures))
    return merged


def plain(text: str) -> str:
    """Escape text for Markdown, tables included."""
    shown = one_line(text)
    for mark in "\\`*_{}[]<>#|":
        shown = shown.replace(mark, "\\" + mark)
    return shown
