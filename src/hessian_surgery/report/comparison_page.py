"""The page of a comparison: the advice, the front against class bias and the other rivals, and how to do it again."""

from collections.abc import Sequence
from typing import Any

from hessian_surgery.report import charts
from hessian_surgery.report.markup import name, percent, points, side_by_side, table, text
from hessian_surgery.report.page import Section, make_page
from hessian_surgery.report.provenance import facts_of, reproduction


def comparison_page(content: dict[str, Any]) -> str:
    """The whole page, from the contents of `compare.json`."""
    base = content["base"]
    labels = {"accuracy": "Accuracy", "balanced_accuracy": "Balanced", "sigma": "σ", "worst": "Worst class"}
    tiles = "".join(
        f"<div><dt>{label}</dt><dd><strong>{percent(base[key])}</strong> {'pp' if key == 'sigma' else '%'}</dd></div>"
        for key, label in labels.items()
    )
    said = (
        f"The model as it is, on held-out halves of {content['images']:,} images in {len(content['classes'])} classes, "
        f"halved {content['splits']} times."
    )
    opening = f'<p class="verdict advice">{text(content["advice"]["sentence"])}</p><dl class="tiles">{tiles}</dl>'
    opening += f'<p class="note">{said}</p>'
    sections = [_warnings(content), front_section(content)]
    sections.append(reproduction("compare", content["inputs"], facts_of(content), content.get("hashes", {})))
    return make_page("Comparison report", opening, sections)


def front_section(content: dict[str, Any], opening: str = "") -> Section:
    """The front: σ and the worst class of every method against the change of accuracy, and a table, below `opening`."""
    methods, base = content["methods"], content["base"]
    drawn = (
        charts.front(methods, base, "sigma", "σ of class accuracies (pp)"),
        charts.front(methods, base, "worst", "worst class (%)"),
    )
    words = (
        f'{opening}<p class="note">Means over {content["splits"]} splits on held-out halves. Further right is more '
        "accurate; a lower σ and a higher worst class are more even. Bars are standard errors; ▼ and ▲ mark a σ that "
        "is below or above class bias's at the same accuracy beyond noise.</p>"
    )
    head = ("method", "gives up pp", "Δ accuracy pp", "σ pp", "worst class %", "balanced %", "σ against class bias pp")
    rows = table(head, _merged(methods), "Every method at every budget, on held-out halves", "numbers")
    body = words + side_by_side(*drawn) + charts.front_legend(methods) + rows
    return Section("front", "The front: surgery, class bias and the others", body)


def _merged(methods: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Rows of the table; budgets at which a method answers alike share one."""
    found: list[tuple[str, ...]] = []
    for method in methods:
        title, budget, *figures = _row(method)
        same = found and found[-1][0] == title and list(found[-1][2:]) == figures
        first = found.pop()[1].partition("–")[0] + "–" if same else ""
        found.append((title, first + budget, *figures))
    return found


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    budget = "–" if row["budget"] is None else f"{100 * row['budget']:g}"
    if not row["splits"]:
        return name(row["name"]), budget, "failed", "", "", "", text(row["reason"] or "")
    paired = row["paired_vs_class_bias"]
    against = ""
    if paired:
        low, high = paired["interval"]
        sure = " ▼" if high < 0 else " ▲" if low > 0 else ""
        against = f"{points(paired['difference'], 2)} [{points(low, 2)}, {points(high, 2)}]{sure}"
    return (
        name(row["name"]),
        budget,
        points(row["delta_accuracy"], 2),
        f"{percent(row['sigma'], 2)} ± {percent(row['sigma_se'], 2)}",
        percent(row["worst"]),
        percent(row["balanced_accuracy"]),
        against,
    )


def _warnings(content: dict[str, Any]) -> Section:
    failed: dict[str, tuple[int, str]] = {}
    for row in content["methods"]:
        if row["failed_splits"]:
            failed[row["name"]] = (len(row["failed_splits"]), row["reason"])
    lines = [
        f"<li>{name(key)} failed on {count} splits: {text(reason)}</li>" for key, (count, reason) in failed.items()
    ]
    body = f'<ul class="warnings">{"".join(lines)}</ul>' if lines else "<p>None: every method ran on every split.</p>"
    return Section("warnings", "Warnings", body)
