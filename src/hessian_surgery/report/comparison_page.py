"""The page of a comparison: the advice, warnings, the front, and how to reproduce it."""

from typing import Any

from hessian_surgery.markup import name, percent, points, side_by_side, table, text, tiles, warning_list
from hessian_surgery.report import page_charts
from hessian_surgery.report.figure_data import FRONT_LABELS
from hessian_surgery.report.markdown import merge_budgets
from hessian_surgery.report.page import Section, make_page
from hessian_surgery.report.provenance import facts_of, reproduction, subject


def comparison_page(content: dict[str, Any]) -> str:
    """Make the whole page from the contents of `compare.json`."""
    base = content["base"]
    noun = _noun(content)
    labels = {"accuracy": "Accuracy", "balanced_accuracy": "Balanced", "sigma": "σ", "worst": "Worst class"}
    figures = {
        label: f"<strong>{percent(base[key])}</strong> {'pp' if key == 'sigma' else '%'}"
        for key, label in labels.items()
    }
    opening = (
        f'<p class="verdict advice">{text(content["advice"]["sentence"])}</p>{tiles(figures)}'
        f'<p class="note">The model as it is: {content["images"]:,} {noun} in {len(content["classes"])} classes, '
        f"split into calibration and held-out {noun} {content['splits']} times; means over the held-out {noun}.</p>"
    )
    if "asked" in content:
        opening += f'<p class="note">{text(content["asked"]["sentence"])}</p>'
    opening += subject(content)
    sections = [_warnings(content), front_section(content)]
    sections.append(reproduction("compare", content["inputs"], facts_of(content), content.get("hashes", {})))
    return make_page("Comparison report", opening, sections)


def front_section(content: dict[str, Any], opening: str = "") -> Section:
    """Show σ and the worst class of every method against the change of accuracy, and a table.

    Args:
        content: the contents of `compare.json`.
        opening: HTML above them.
    """
    methods = content["methods"]
    noun = _noun(content)
    note = content.get("asked", {}).get("note", "")
    drawn = (page_charts.front(methods, content["base"], figure) for figure in FRONT_LABELS)
    words = (
        f'{opening}<p class="note">Means over the held-out {noun} of {content["splits"]} splits. Accuracy grows to '
        "the right; classes are more even where σ is lower and the worst class is higher. Bars are standard errors; "
        "▼ and ▲ mark a σ significantly below or above that of class bias at the same accuracy, ⇄ a trade-off: a "
        "higher σ with more accuracy than class bias has anywhere. Differences of σ are without sampling noise. "
        f"{text(note)}</p>"
    )
    against = "σ against class bias pp"
    head = ("method", "budget pp", "Δ accuracy pp", "σ pp", "worst class %", "balanced %", "largest loss pp", against)
    caption = f"Every method at every budget, on held-out {noun}"
    rows = table(head, merge_budgets(map(_row, methods)), caption, "numbers")
    body = words + side_by_side(*drawn) + page_charts.front_legend(methods) + rows
    return Section("front", "The front: σ and worst class against accuracy", body)


def _noun(content: dict[str, Any]) -> str:
    """What samples are called; comparisons of earlier versions are of images."""
    return text(content.get("noun", "images"))


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    budget = "–" if row["budget"] is None else f"{100 * row['budget']:g}"
    if not row["splits"]:
        return name(row["name"]), budget, "failed", "", "", "", "", text(row["reason"] or "")
    paired = row["paired_vs_class_bias"]
    against = ""
    if paired:
        low, high = paired["interval"]
        sign = " ▼" if high < 0 else " ⇄" if row.get("standing") == "trade-off" else " ▲" if low > 0 else ""
        against = f"{points(paired['difference'], 2)} [{points(low, 2)}, {points(high, 2)}]{sign}"
        against = "the same step" if paired["difference"] == low == high == 0 else against
    if row.get("unlimited"):
        against += f" ({text(row['unlimited'])})"
    lost = row.get("largest_loss")
    return (
        name(row["name"]),
        budget,
        points(row["delta_accuracy"], 2),
        f"{percent(row['sigma'], 2)} ± {percent(row['sigma_se'], 2)}",
        percent(row["worst"]),
        percent(row["balanced_accuracy"]),
        "" if lost is None else f"{percent(lost['loss'])} {name(lost['class'])}" if lost["loss"] > 0 else "none",
        against,
    )


def _warnings(content: dict[str, Any]) -> Section:
    failed: dict[str, tuple[int, str]] = {}
    for row in content["methods"]:
        if row["failed_splits"]:
            failed[row["name"]] = (len(row["failed_splits"]), row["reason"])
    lines = [text(warning) for warning in content.get("warnings", [])]
    lines += [f"{name(key)} failed on {count} splits: {text(reason)}" for key, (count, reason) in failed.items()]
    return Section("warnings", "Warnings", warning_list(lines))
