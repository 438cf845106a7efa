"""Fronts in words: the rows of a table, and Markdown."""

from collections.abc import Iterable, Sequence

from hessian_surgery.comparison.advice import advise
from hessian_surgery.comparison.fronts import Fronts
from hessian_surgery.comparison.row import Row
from hessian_surgery.comparison.terms import marks_note, terms_sentence
from hessian_surgery.report.markdown import merge_budgets, plain


def table_rows(fronts: Fronts) -> list[tuple[str, ...]]:
    """Return the rows of the table, in percentage points.

    Budgets at which an entry has the same figures share a row.
    """
    return merge_budgets(map(_cells, fronts.rows))


def _cells(row: Row) -> tuple[str, ...]:
    """Return a row's figures, or the reason why there are none."""
    budget = "–" if row.budget is None else f"{100 * row.budget:g}"
    if not row.splits:
        return (row.name, budget, "", "", "", "", "", f"failed: {next(iter(row.reasons.values()), 'not run')}")
    paired = row.paired.get("class-bias")
    against = "" if paired is None else against_bias(paired.difference, paired.interval)
    notes = ["more accuracy: a trade-off"] if row.standing == "trade-off" else []
    notes += [] if row.missed is None else [f"targets missed by {100 * row.missed:.1f} pp on average"]
    notes += [row.unlimited] if row.unlimited else []
    notes += [f"{len(row.reasons)} splits failed"] if row.reasons else []
    return (
        row.name,
        budget,
        f"{100 * row.delta_accuracy:+.2f}",
        f"{100 * row.sigma:.2f} ± {100 * row.sigma_se:.2f}",
        f"{100 * row.worst:.1f}",
        f"{100 * row.balanced_accuracy:.1f}",
        largest_loss(row.loss),
        " ".join([against, *([f"({'; '.join(notes)})"] if notes else [])]).strip(),
    )


def against_bias(found: float, interval: Sequence[float]) -> str:
    """A difference in σ from class bias, in pp; without any, both make the same step."""
    low, high = interval
    if found == low == high == 0:
        return "the same step"
    return f"{100 * found:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]"


def largest_loss(found: tuple[float, str] | None) -> str:
    """What the class that lost most has lost, in pp, and the class; "none" if no class lost."""
    return "" if found is None else f"{100 * found[0]:.1f} {found[1]}" if found[0] > 0 else "none"


def _verdicts(rows: Iterable[Row]) -> list[str]:
    """Say of each method that has verdicts how many splits had which, a line for each method."""
    counted: dict[str, list[str]] = {}
    for row in rows:
        if row.verdicts:
            at = "" if row.budget is None else f" at a budget of {100 * row.budget:g} pp"
            found = ", ".join(f"{count} {verdict}" for verdict, count in row.verdicts.items())
            counted.setdefault(row.name, []).append(found + at)
    return [f"Verdicts on {plain(name)}, one for each split: {'; '.join(each)}." for name, each in counted.items()]


def to_markdown(fronts: Fronts) -> str:
    """Write the table, the advice and each direction's share of class bias as Markdown."""
    base = fronts.base
    noun = fronts.noun
    lines = [
        f"{len(fronts.classes)} classes, {fronts.images:,} {noun}, {fronts.splits} splits. Figures are means over "
        f"splits on held-out {noun}, ± the standard error from a bootstrap over {noun}; differences of σ are without "
        "sampling noise. The model as it is: accuracy "
        f"{100 * base['accuracy']:.2f} %, balanced {100 * base['balanced_accuracy']:.2f} %, σ "
        f"{100 * base['sigma']:.2f} pp, worst class {100 * base['worst']:.1f} %. "
        f"{plain(terms_sentence(fronts.terms))} {plain(marks_note(fronts.terms))}".strip(),
        "",
        "| method | budget (pp) | Δ accuracy (pp) | σ (pp) | worst class (%) | balanced (%) "
        "| largest class loss (pp) | σ against class bias at the same accuracy | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    seconds = {row.name: f"{row.seconds:.1f}" for row in fronts.rows}
    lines += ["| " + " | ".join((*map(plain, cells), seconds[cells[0]])) + " |" for cells in table_rows(fronts)]
    lines += ["", f"**{plain(advise(fronts).sentence)}**"]
    lines += [line for verdicts in _verdicts(fronts.rows) for line in ("", verdicts)]
    lines += [line for warning in fronts.warnings for line in ("", f"> {plain(warning)}")]
    for name, shares in fronts.bias_shares.items():
        listed = ", ".join(f"{share:.2f}" for share in shares[:20]) + (", …" if len(shares) > 20 else "")
        lines += ["", f"Share of each direction's logit change that a class bias explains ({name}): {listed}."]
    return "\n".join(lines) + "\n"
