"""Make the tables of `docs/evidence/operation.md` from their JSON files: `make results`.

A table stands between the lines `<!-- table NAME -->` and `<!-- end of table -->`.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

EVIDENCE = Path(__file__).parent / "evidence"
PAGE = EVIDENCE / "operation.md"
PROMISES = Path(__file__).parents[1] / "benchmarks" / "results" / "promises.json"
TABLE = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
METHODS = {
    "operate": "**`operate`**",
    "class-bias": "class bias",
    "logit-adjustment": "logit adjustment",
    "vector-scaling": "vector scaling",
    "tau-norm": "τ-normalization",
    "last-layer": "the last layer refitted",
}
# The smallest change of σ that two digits show.
SEEN = 0.00005
VERDICTS = ("better", "no detectable change", "worse")


def points(value: float) -> str:
    """A difference in percentage points, with its sign; none for zero."""
    text = f"{100 * value:+.2f}".replace("-", "−")
    return text[1:] if not float(text[1:]) else text


def with_interval(found: dict[str, Any] | None) -> str:
    """A difference with its interval; empty if there is none."""
    if found is None:
        return ""
    low, high = map(points, found["interval"])
    return f"{points(found['difference'])} [{low}, {high}]"


def verdicts(found: dict[str, int]) -> str:
    """How often each verdict was given; empty if none was."""
    return ", ".join(str(found.get(verdict, 0)) for verdict in VERDICTS) if found else ""


def halvings(name: str) -> list[list[str]]:
    """What each method did at each budget of 0 or more; without those that changed nothing."""
    content = json.loads((EVIDENCE / f"halvings-{name}.json").read_text(encoding="utf-8"))
    balanced = not math.isclose(content["base"]["balanced_accuracy"], content["base"]["accuracy"])
    spread = "balanced (%)" if balanced else "worst class (%)"
    rival = "σ against class bias at the same accuracy"
    said = "verdicts (better, no change, worse)"
    table = [["", "budget", "Δ accuracy", "σ", "change of σ without noise", spread, rival, said]]
    for method, shown in METHODS.items():
        rows = [row for row in content["methods"] if row["name"] == method and row["budget"] >= 0]
        if any(abs(row["sigma_change"]["difference"]) > SEEN for row in rows):
            first = [shown, *[""] * (len(rows) - 1)]
            table += [
                [cell, *_halvings_cells(row, content["base"], balanced)] for cell, row in zip(first, rows, strict=True)
            ]
    return table


def _halvings_cells(row: dict[str, Any], base: dict[str, float], balanced: bool) -> list[str]:
    fall = "" if balanced else f" ({100 * (row['sigma'] / base['sigma'] - 1):+.0f} %)".replace("-", "−")
    return [
        f"{100 * row['budget']:g}",
        points(row["delta_accuracy"]),
        f"{100 * row['sigma']:.2f}{fall}",
        with_interval(row["sigma_change"]),
        f"{100 * row['balanced_accuracy' if balanced else 'worst']:.1f}",
        with_interval(row["paired_vs_class_bias"]),
        verdicts(row["verdicts"]),
    ]


def percent(figure: dict[str, Any]) -> str:
    """A share in percent."""
    return f"{100 * figure['share']:.0f} %"


def of(figure: dict[str, Any]) -> str:
    """A share as so many of so many."""
    return f"{round((figure['share'] or 0) * figure['of'])} of {figure['of']}"


def mean(figure: dict[str, Any]) -> str:
    """A mean change in percentage points, with its standard error."""
    return f"{points(figure['mean'])} ± {100 * figure['error']:.2f}"


# A column: its heading, a figure's name, and how that reads.
Column = tuple[str, str, Callable[[dict[str, Any]], str]]
KEPT: list[Column] = [("kept", "kept", percent), ("true Δσ (pp)", "Δσ", mean)]
SPENT: list[Column] = [
    ("true Δ accuracy (pp)", "Δaccuracy", mean),
    ("lost 0.2 pp more than the budget", "overrun", percent),
]
COVERED: Column = ("interval of Δσ holds the truth", "covered", percent)
# The columns of each simulated case, beside its settings.
COLUMNS: dict[str, list[Column]] = {
    "null": [("a step kept", "kept", percent), ("mean true Δσ (pp)", "Δσ", mean), ('"better"', "better", percent)],
    "unequal": [*KEPT, *SPENT, COVERED],
    "skewed": [*KEPT, *SPENT, ('"worse"', "worse", percent), ('"worse", and false', "false worse", percent)],
    "targets": [
        ("refused", "refused", percent),
        ("said to be reached, and true", "target: true of these", of),
        ("in truth reached by runs that went on", "target: true of all", percent),
        ("protected classes said to be kept, and true", "protected: true of these", of),
    ],
    "folds": [
        COVERED,
        ("its length, of that with half held out", "length / half's", lambda figure: f"{figure['mean']:.2f}"),
        ("true Δσ (pp)", "Δσ", mean),
        ("with half held out", "half: Δσ", mean),
        ("true Δ accuracy (pp)", "Δaccuracy", mean),
    ],
}
SETTINGS = {"null": "images of a class", "folds": "labelled images of a class", "targets": "images of a class, target"}


def promises(case: str) -> list[list[str]]:
    """What was simulated of a case with the default settings."""
    rows = json.loads(PROMISES.read_text(encoding="utf-8"))[case].values()
    shown = [row for row in rows if "directions" not in row["setting"] and "heldout" not in row["setting"]]
    columns = COLUMNS[case]
    table = [[SETTINGS.get(case, "images of a class, budget (pp)"), "runs", *(heading for heading, _, _ in columns)]]
    for row in sorted(shown, key=lambda row: _order(row["setting"])):
        cells = [read(row["figures"][name]) for _, name, read in columns]
        table.append([_setting(row["setting"], case), str(len(row["runs"])), *cells])
    return table


def _order(setting: dict[str, Any]) -> tuple[Any, ...]:
    return (setting["net"], setting["per_class"], setting.get("budget", 0), setting.get("gain", 0))


def _setting(setting: dict[str, Any], case: str) -> str:
    """A row's settings in words."""
    # Classes of a skewed case are drawn so often on average.
    images = f"{setting['per_class'] * (10 if case == 'skewed' else 1):,}"
    linear = ["a linear net"] if setting["net"] == "linear" else []
    own = [f"{100 * setting[name]:g}{unit}" for name, unit in (("budget", ""), ("gain", " pp")) if name in setting]
    return ", ".join([images, *linear, *own])


TABLES: dict[str, Callable[[], list[list[str]]]] = {
    **{f"halvings-{name}": partial(halvings, name) for name in ("cifar10", "cifar100", "ham10000")},
    **{f"promises-{case}": partial(promises, case) for case in COLUMNS},
}


def lines(table: list[list[str]]) -> Iterator[str]:
    """A table in Markdown; its first row is the head."""
    for number, row in enumerate(table):
        yield f"| {' | '.join(row)} |\n"
        if number == 0:
            yield f"|{'---|' * len(row)}\n"


def filled(page: str) -> str:
    """The page with its tables made again."""
    return TABLE.sub(lambda found: found[1] + "\n" + "".join(lines(TABLES[found[2]]())) + "\n" + found[3], page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE)
