"""The page of a diagnosis: the advice, each class, the spectrum, S, and how to do it again."""

from typing import Any

from hessian_surgery.report import charts
from hessian_surgery.report.markup import (
    class_scale,
    name,
    percent,
    scale_floor,
    table,
    text,
    warning_list,
    with_interval,
)
from hessian_surgery.report.page import Section, make_page
from hessian_surgery.report.provenance import facts_of, reproduction
from hessian_surgery.report.sensitivity import sensitivity_section, spectrum_section, spike_names


def diagnosis_page(content: dict[str, Any]) -> str:
    """The whole page, from the contents of `diagnosis.json`."""
    metrics, structure = content["metrics"], content["structure"]
    axes = len(structure["singular_values"])
    tiles = {
        "σ": f"<strong>{percent(metrics['sigma'])}</strong> pp",
        "Worst class": f"<strong>{percent(metrics['worst'])}</strong> %",
        "Accuracy": f"<strong>{percent(metrics['accuracy'])}</strong> %",
        "Effective rank of S": f"<strong>{structure['effective_rank']:.1f}</strong> of {axes}",
    }
    shown = "".join(f"<div><dt>{key}</dt><dd>{value}</dd></div>" for key, value in tiles.items())
    opening = f'<p class="verdict advice">{text(content["advice"])}</p><dl class="tiles">{shown}</dl>'
    spikes = spike_names(len(content["eigenvalues"]))
    sections = [
        _warnings(content),
        _classes(content),
        sensitivity_section(content["sensitivity"], spikes, content["classes"]),
        *spectrum_section(content["eigenvalues"], content["residuals"], content["tolerance"]),
        reproduction("diagnose", content["inputs"], facts_of(content), content["hashes"]),
    ]
    return make_page("Diagnosis", opening, sections)


def _warnings(content: dict[str, Any]) -> Section:
    lines = [text(line) for line in content["warnings"]]
    lines += [
        f"every spike moves {name(one)} and {name(other)} in opposite directions"
        for one, other in content["structure"]["entangled"]
    ]
    return Section("warnings", "Warnings", warning_list(lines))


def _classes(content: dict[str, Any]) -> Section:
    metrics = content["metrics"]
    floor = scale_floor(metrics["interval"])
    rows = []
    for j in sorted(range(len(content["classes"])), key=lambda j: metrics["per_class"][j]):
        value, (low, high) = metrics["per_class"][j], metrics["interval"][j]
        rows.append(
            (
                name(content["classes"][j]),
                charts.interval_row(floor, (low, value, high)),
                f"{metrics['count'][j]:,}",
                with_interval(value, (low, high)),
            )
        )
    shown = table(
        ("class", class_scale(floor), "images", "accuracy %"), rows, "Accuracy of each class, weakest first", "classes"
    )
    return Section("classes", "Each class", shown)
