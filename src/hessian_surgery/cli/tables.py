"""Print results for a person: per-class tables, the verdict, a diagnosis, a cost."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from hessian_surgery.comparison.advice import advise
from hessian_surgery.comparison.fronts import Fronts
from hessian_surgery.comparison.tables import table_rows
from hessian_surgery.comparison.terms import marks_note, terms_sentence
from hessian_surgery.curvature.memory import sized
from hessian_surgery.evidence.deciles import MANY_CLASSES, MOST, left_out, shown_classes
from hessian_surgery.evidence.noun import said_of
from hessian_surgery.operation.answer_text import answer_parts
from hessian_surgery.operation.cost import Cost
from hessian_surgery.operation.findings import Findings
from hessian_surgery.operation.schedule import Expected
from hessian_surgery.paper.diagnosis import Diagnosis, SpikeDiagnosis
from hessian_surgery.report.deciles import FORMED, HEAD, decile_note, decile_rows
from hessian_surgery.report.diagnosis_page import PAIRS
from hessian_surgery.report.figure_data import weakest_and_strongest
from hessian_surgery.report.markdown import main_flows, summary_rows
from hessian_surgery.terminal import safe

COLOURS = {"good": "green", "mixed": "yellow", "bad": "red", "plain": "yellow"}


def print_findings(console: Console, findings: Findings) -> None:
    """Print the answer, each class of the held-out images, figures for all, then the verdict."""
    _print_answer(console, findings)
    images = findings.heldout
    tests = findings.tests
    before, after = images.metrics()
    title = "held-out images" if findings.folds is None else f"images in {findings.folds} folds"
    table = Table(title=f"{len(images.labels)} {findings.said(title)}", title_justify="left")
    # Of many classes the names are long, and the smallest visible changes are large.
    visible = () if findings.many else ("visible",)
    for heading in ("class", findings.noun, "before %", "after %", "change pp", *visible, "p (Holm)"):
        table.add_column(heading, justify="left" if heading == "class" else "right", no_wrap=heading != "class")
    shown = shown_classes(before.per_class, after.per_class)
    for j in shown:
        low, high = (100 * end for end in after.interval[j])
        test = tests.per_class[j]
        table.add_row(
            safe(images.classes[j]),
            str(before.count[j]),
            f"{100 * before.per_class[j]:.1f}",
            f"{100 * after.per_class[j]:.1f} [dim]\\[{low:.0f}, {high:.0f}][/]",
            _signed(100 * (after.per_class[j] - before.per_class[j])),
            *(f"[dim]±{100 * test.detectable:.0f}[/]" for _ in visible),
            f"{test.p_holm:.2g}" if test.claim else "[dim]too few[/]",
        )
    console.print(table)
    if len(shown) < len(images.classes):
        console.print(f"[dim]{left_out(len(shown), len(images.classes))}[/]\n", highlight=False)
        console.print(_deciles(findings))
        console.print(f"[dim]{findings.said(decile_note(findings))}[/]\n", highlight=False)
    console.print(_summary(findings))
    if findings.note:
        console.print(f"[bold]{safe(findings.note)}[/]", highlight=False)
    for flow in main_flows(tests):
        console.print(f"[dim]{safe(str(flow))}[/]", highlight=False)
    _print_warnings(console, findings.warnings)
    colour = COLOURS[findings.verdict.tone]
    console.print(f"[bold {colour}]{safe(findings.verdict.sentence)}[/]", highlight=False)


def _print_answer(console: Console, findings: Findings) -> None:
    """The headline, the same in plain words, and each part of the answer."""
    colour = COLOURS[findings.verdict.tone]
    console.print(f"[bold {colour}]{safe(findings.verdict.headline)}[/]", highlight=False)
    console.print(safe(findings.plain), highlight=False)
    for title, lines in answer_parts(findings):
        console.print(f"[bold]{title}[/]", highlight=False)
        for line in lines:
            console.print(f"  {safe(line)}", highlight=False)
    console.print()


def _deciles(findings: Findings) -> Table:
    """The groups; how they were formed is left out, to fit 80 columns."""
    groups = Table(box=None, padding=(0, 1, 0, 0))
    for i, heading in enumerate(HEAD):
        if i != FORMED:
            groups.add_column(safe(heading), justify="right" if i else "left", no_wrap=True)
    for row in decile_rows(findings.deciles):
        groups.add_row(*(safe(cell) for i, cell in enumerate(row) if i != FORMED))
    return groups


def _summary(findings: Findings) -> Table:
    summary = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("", "before", "after", "change \\[95 % interval]"):
        summary.add_column(heading, justify="left")
    for row in summary_rows(findings):
        summary.add_row(*map(safe, row))
    return summary


# What an operation moves along, by family of directions.
ALONG = {
    "refit": "class gradients and a refitted head",
    "class-gradients": "class gradients",
    "spikes": "spikes",
    "both": "class gradients and spikes",
    "biases": "biases",
}


def describe_choices(choices: dict[str, Any], findings: Findings) -> str:
    """Sum up in one line the choices that the config left open, and what moved."""
    names = choices["protected"]
    more = f" and {len(names) - MOST} more" if len(names) > MANY_CLASSES else ""
    protected = ", ".join(names[:MOST] if more else names) + more or "none"
    if "spikes" in choices:
        how = f"{choices['spikes']} spikes, p = {choices['exponent']:g}"
    else:
        changed = findings.changed
        moved = (
            "the head's biases alone" if changed and changed.only_biases else f"along {ALONG[choices['directions']]}"
        )
        how = f"{moved}, giving up at most {100 * choices['budget']:.2g} pp of accuracy"
    limit = max(findings.asked.limits.values(), default=choices["max_drop"])
    most = f"at most {100 * limit:.1f} pp lost"
    return f"{how}; protected ({most}): {safe(protected)}"


def print_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    """Print class accuracies, the structure of S if there are spikes, the forecast, the advice."""
    found = diagnosis.spikes
    spikes = range(0 if found is None else min(len(found.eigenvalues), 9))
    response = ", and its response to each spike λ (pp per 0.01 of amplitude)" if spikes else " on the calibration data"
    console.print(f"[italic]Accuracy{response}[/]", highlight=False)
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("class", overflow="ellipsis", max_width=12)
    table.add_column("% \\[95 %]", justify="right", no_wrap=True)
    values = [] if found is None else [found.eigenvalues[i] for i in spikes]
    for value in values:
        table.add_column(f"{value:.0f}" if value >= 10 else f"{value:.2g}", justify="right", no_wrap=True)
    shown = list(range(len(diagnosis.classes)))
    if len(shown) > MANY_CLASSES:
        shown = weakest_and_strongest(diagnosis.metrics.per_class, MOST)
    for j in shown:
        low, high = (100 * end for end in diagnosis.metrics.interval[j])
        cells = [] if found is None else [_signed(found.sensitivity[i][j]) for i in spikes]
        accuracy = f"{100 * diagnosis.metrics.per_class[j]:.1f} [dim]\\[{low:.0f}, {high:.0f}][/]"
        table.add_row(safe(diagnosis.classes[j]), accuracy, *cells)
    console.print(table)
    if len(shown) < len(diagnosis.classes):
        words = f"the {MOST} weakest and the {MOST} strongest of {len(diagnosis.classes):,} classes"
        console.print(f"[dim]{words}[/]", highlight=False)
    if found is not None:
        _print_structure(console, diagnosis, found)
    _print_warnings(console, diagnosis.warnings)
    console.print(safe(diagnosis.forecast.sentence), highlight=False)
    console.print(f"[bold]{safe(diagnosis.advice)}[/]", highlight=False)


def _print_structure(console: Console, diagnosis: Diagnosis, found: SpikeDiagnosis) -> None:
    """The structure of S, and classes that every spike moves in opposite directions."""
    structure = found.structure
    flatness = "–" if structure.flatness is None else f"{structure.flatness:.2f}×"
    console.print(
        f"effective rank {structure.effective_rank:.2f}   first singular value {flatness} the second   "
        f"‖S‖ {structure.frobenius:.3g}\n"
        f"error ratio {diagnosis.error_ratio:.1f}, so the paper's rule gives p = {diagnosis.exponent:g}   "
        f"probe ε {found.epsilon:.3g}",
        highlight=False,
    )
    for one, other in structure.entangled[:PAIRS]:
        console.print(f"every spike moves {safe(one)} and {safe(other)} in opposite directions", highlight=False)
    if len(structure.entangled) > PAIRS:
        console.print(f"… and so {len(structure.entangled) - PAIRS:,} more pairs of classes", highlight=False)


def print_cost(console: Console, cost: Cost, noun: str = "images") -> None:
    """Print what `--dry-run` shows, of samples that are called so."""
    rows = {
        "operations": f"{cost.operations}",
        "weights that may move": f"{cost.weights:,}",
        "directions": f"{cost.directions}",
        "Hessian products": f"{cost.products:,}",
        "gradients of training images": f"{cost.gradients:,}",
        "passes over the calibration images": f"{cost.passes:,} ({cost.images:,} images)",
        "of these with a gradient": f"{cost.backward:,}",
    }
    if cost.basis is not None:
        rows["basis"] = cost.basis.partition(": ")[2]
    table = Table(box=None, show_header=False)
    for label, value in rows.items():
        table.add_row(said_of(label, noun), said_of(value, noun))
    console.print(table)
    _print_stages(console, cost, noun)


def _print_stages(console: Console, cost: Cost, noun: str) -> None:
    """Seconds and memory of each stage; a place that no stage uses is left out."""
    places = {"device": "on the GPU", "host": "in memory", "disk": "on disk"}
    used = [place for place in places if any(getattr(stage, f"{place}_bytes") for stage in cost.stages)]
    table = Table(box=None, pad_edge=False)
    for title in ("stage", "seconds", *(places[place] for place in used)):
        table.add_column(title, justify="left" if title == "stage" else "right")
    for stage in cost.stages:
        held = [sized(getattr(stage, f"{place}_bytes")) for place in used]
        table.add_row(stage.name, "" if stage.seconds is None else f"{stage.seconds:,.1f}", *held)
    console.print()
    console.print(table, highlight=False)
    seconds = "" if cost.seconds is None else f"about {cost.seconds:,.0f} s in all; "
    console.print(f"{seconds}at most {sized(cost.total_bytes)} at a time, besides the model", highlight=False)
    for line in cost.spilled:
        console.print(f"[yellow]note:[/] there is too little memory for {safe(said_of(line, noun))}", highlight=False)


def print_seconds(console: Console, stages: Sequence[Expected]) -> None:
    """Print the seconds of each stage."""
    table = Table(box=None, pad_edge=False)
    table.add_column("stage")
    table.add_column("seconds", justify="right")
    for stage in stages:
        table.add_row(safe(stage.name), f"{stage.seconds:,.1f}")
    console.print(table, highlight=False)
    console.print(f"about {sum(stage.seconds for stage in stages):,.0f} s in all", highlight=False)


def print_fronts(console: Console, fronts: Fronts) -> None:
    """Print the table of a comparison, and the advice."""
    shown = Table(box=None, pad_edge=False)
    base = {name: 100 * value for name, value in fronts.base.items()}
    console.print(
        f"The model as it is, on held-out halves: accuracy {base['accuracy']:.2f} %, σ {base['sigma']:.2f} pp, worst "
        f"class {base['worst']:.1f} %. Budgets hold on the calibration halves; all figures in percentage points, "
        f"differences of σ without sampling noise. {safe(terms_sentence(fronts.terms))} "
        f"{marks_note(fronts.terms)}\n",
        highlight=False,
    )
    words = ("method", "largest loss", "σ against class bias")
    for title in ("method", "budget", "Δ acc", "σ", "worst", "largest loss", "σ against class bias"):
        shown.add_column(title, justify="left" if title in words else "right")
    for method, budget, change, sigma, worst, _, loss, against in table_rows(fronts):
        shown.add_row(method, budget, change, sigma, worst, safe(loss), safe(against))
    console.print(shown, highlight=False)
    _print_warnings(console, fronts.warnings)
    console.print(f"\n{advise(fronts).sentence}", highlight=False, markup=False)


def _print_warnings(console: Console, warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        console.print(f"[yellow]note:[/] {safe(warning)}", highlight=False)


def _signed(value: float) -> str:
    colour = "green" if value > 0 else "red" if value < 0 else "dim"
    return f"[{colour}]{value:+.1f}[/]"
