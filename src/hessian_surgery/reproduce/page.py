"""An item's page: the paper's numbers beside ours, as Markdown."""

from textwrap import fill
from typing import Any

# Of a mean and its spread, what is smaller than the other by this factor is rounding.
ROUNDING = 1e-6


def item_page(content: dict[str, Any], figure: bool) -> str:
    """The page of one item, from the contents of its JSON."""
    name = content["item"]
    lines = [f"# {content['paper'].capitalize()}: {content['title']}", ""]
    lines += [f"`{content['command']}`", f"→ [{name}.json]({name}.json)", ""]
    lines += [fill(f"{_splits(content)}; {_cost(content)}.", 100), ""]
    if figure:
        lines += [f"![{content['title']}]({name}.svg)", ""]
    lines += ["| | the paper | ours | verdict |", "|---|---|---|---|"]
    lines += [_line(row) for row in content["rows"]]
    rules = list(dict.fromkeys(f"{row['verdict']}: {row['why']}" for row in content["rows"]))
    return "\n".join([*lines, "", *(fill(f"- {rule}", 100, subsequent_indent="  ") for rule in rules)]) + "\n"


def overview(contents: list[dict[str, Any]]) -> str:
    """One line for each item: how many of its rows are reproduced."""
    lines = ["| item | in the paper | reproduced | not reproduced | not comparable |", "|---|---|---|---|---|"]
    for content in contents:
        verdicts = [row["verdict"] for row in content["rows"]]
        counts = " | ".join(str(verdicts.count(kind)) for kind in ("reproduced", "not reproduced", "not comparable"))
        lines.append(f"| [{content['item']}]({content['item']}.md) | {content['paper']} | {counts} |")
    return "\n".join(lines) + "\n"


def claims_table(contents: list[dict[str, Any]]) -> str:
    """A line for each row that is judged: those that held, and those that did not."""
    lines = ["| claim | the paper | ours | verdict | evidence |", "|---|---|---|---|---|"]
    for content in contents:
        link = f"[{content['paper']}]({content['item']}.md)"
        lines += [f"{_line(row)} {link} |" for row in content["rows"] if row["verdict"] != "not comparable"]
    return "\n".join(lines) + "\n"


def _line(row: dict[str, Any]) -> str:
    label, paper, ours = row_cells(row)
    if row["interval"] is not None:
        ours += f" [{number(row['interval'][0])}, {number(row['interval'][1])}]"
    return f"| {_cell(label)} | {paper} | {ours} | {row['verdict']} |"


def row_cells(row: dict[str, Any]) -> tuple[str, str, str]:
    """The label with its unit, the paper's number, and our mean with its spread over splits."""
    unit = f", {row['unit']}" if row["unit"] else ""
    paper = "–" if row["paper"] is None else number(row["paper"])
    mean, spread = row["mean"], row["spread"]
    if spread is None:
        return row["label"] + unit, paper, number(mean)
    return row["label"] + unit, paper, f"{number(_beside(mean, spread))} ± {number(_beside(spread, mean))}"


def _beside(value: float, other: float) -> float:
    """The same, or 0 if it is no more than rounding of the other."""
    return 0.0 if abs(value) < ROUNDING * abs(other) else value


def number(value: float) -> str:
    """A number with two to four significant digits."""
    size = abs(value)
    if size >= 1000 or (0 < size < 0.001):
        return f"{value:.3g}"
    if 0 < size < 0.1:
        return f"{value:.2g}"
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def _cell(text: str) -> str:
    """Text that may stand in a Markdown table."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def _splits(content: dict[str, Any]) -> str:
    count = content["splits"]
    return "One run" if count == 1 else f"{count} splits: mean ± standard deviation over them"


def _cost(content: dict[str, Any]) -> str:
    seconds = f"{content['seconds']:.0f} s on {content['environment']['device']}"
    count = content["processes"]
    if count == 1:
        return seconds
    return f"{seconds}, added over runs, up to {count} of which shared it; runs that items share count once"
