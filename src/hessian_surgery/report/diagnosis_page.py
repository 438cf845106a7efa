"""The page of a diagnosis: the advice, each class, S, the spectrum, and how to reproduce it."""

from typing import Any

from hessian_surgery.evidence.metrics import Metrics
from hessian_surgery.markup import (
    class_scale,
    name,
    percent,
    scale_floor,
    table,
    text,
    tiles,
    warning_list,
    with_interval,
)
from hessian_surgery.report import page_charts
from hessian_surgery.report.class_search import class_data, search_box
from hessian_surgery.report.figure_data import make_spikes, spike_responses, weakest_and_strongest
from hessian_surgery.report.page import Section, make_page
from hessian_surgery.report.provenance import facts_of, reproduction, subject
from hessian_surgery.report.responses import responses_section
from hessian_surgery.report.spectrum import spectrum_section

# Of many classes, so many are shown from either end.
ENDS = 10
# So many entangled pairs are named.
PAIRS = 20


def diagnosis_page(content: dict[str, Any]) -> str:
    """Make the whole page from the contents of `diagnosis.json`."""
    metrics = content["metrics"]
    figures = {
        "σ": f"<strong>{percent(metrics['sigma'])}</strong> pp",
        "Worst class": f"<strong>{percent(metrics['worst'])}</strong> %",
        "Accuracy": f"<strong>{percent(metrics['accuracy'])}</strong> %",
    }
    sections = [_warnings(content), _classes(content)]
    if "structure" in content:
        structure = content["structure"]
        axes = len(structure["singular_values"])
        figures["Effective rank of S"] = f"<strong>{structure['effective_rank']:.1f}</strong> of {axes}"
        tolerance = content["tolerance"]
        spikes = make_spikes(content["eigenvalues"], content["residuals"], tolerance)
        sections += [responses_section(spike_responses(content)), spectrum_section(spikes, tolerance)]
    sections.append(reproduction("diagnose", content["inputs"], facts_of(content), content["hashes"]))
    opening = f'<p class="verdict advice">{text(content["advice"])}</p>{_forecast(content)}{tiles(figures)}'
    return make_page("Diagnosis report", opening + subject(content), sections)


def _forecast(content: dict[str, Any]) -> str:
    """The forecast; diagnoses of earlier versions have none."""
    forecast = content.get("forecast")
    return f'<p class="note">{text(forecast["sentence"])}</p>' if forecast else ""


def _warnings(content: dict[str, Any]) -> Section:
    lines = [text(line) for line in content["warnings"]]
    entangled = content["structure"]["entangled"] if "structure" in content else []
    lines += [
        f"every spike moves {name(one)} and {name(other)} in opposite directions" for one, other in entangled[:PAIRS]
    ]
    if len(entangled) > PAIRS:
        lines.append(
            f"{len(entangled) - PAIRS:,} more pairs of classes are entangled like that; diagnosis.json has them"
        )
    return Section("warnings", "Warnings", warning_list(lines))


def _classes(content: dict[str, Any]) -> Section:
    metrics = content["metrics"]
    floor = scale_floor(metrics["interval"])
    shown = weakest_and_strongest(metrics["per_class"], ENDS)
    rows = []
    for j in shown:
        value = metrics["per_class"][j]
        low, high = metrics["interval"][j]
        drawn = page_charts.interval_row(floor, (low, value, high))
        rows.append((name(content["classes"][j]), drawn, f"{metrics['count'][j]:,}", with_interval(value, (low, high))))
    head = ("class", class_scale(floor), text(content.get("noun", "images")), "accuracy %")
    if len(shown) == len(content["classes"]):
        return Section("classes", "Each class", table(head, rows, "Accuracy of each class, weakest first", "classes"))
    caption = f"The {ENDS} weakest and the {ENDS} strongest of {len(content['classes']):,} classes"
    empty = (name(""), page_charts.interval_row(floor, (0, 0, 0)), "", with_interval(0, (0, 0)))
    found = f'<div id="found" hidden>{table(head, [empty], "Classes found", "classes")}</div>'
    body = search_box("find", "Find a class by its name") + found + table(head, rows, caption, "classes")
    return Section("classes", "Classes", body + class_data(content["classes"], Metrics(**metrics), floor))
