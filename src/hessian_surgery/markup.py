"""Text, names, tables and data as HTML, in which no text of a user is read as markup."""

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hessian_surgery.plain_text import one_line, visible


def text(value: object) -> str:
    """Write a value as text: escaped, on one line, and without characters that do not show."""
    return html.escape(one_line(str(value)), quote=True)


def minus(numbers: str) -> str:
    """Replace hyphens in numbers by minus signs."""
    return numbers.replace("-", "−")


def name(value: object) -> str:
    """Write a class's name; one in a right-to-left script leaves its surroundings as they are."""
    return f"<bdi>{text(value)}</bdi>"


def short(value: object, length: int) -> str:
    """Write a name in at most `length` letters."""
    return text(shortened(value, length))


def shortened(value: object, length: int) -> str:
    """Cut a name to one line of at most `length` letters, without escaping it."""
    whole = one_line(str(value))
    return whole if len(whole) <= length else whole[: length - 1] + "…"


def percent(fraction: float, digits: int = 1) -> str:
    """Write a fraction in percent, without the percent sign."""
    return f"{100 * fraction:.{digits}f}"


def points(difference: float, digits: int = 1) -> str:
    """Write a difference of fractions in percentage points."""
    return minus(f"{100 * difference:+.{digits}f}")


def with_interval(value: float, interval: tuple[float, float], digits: int = 0) -> str:
    """Write a fraction in percent, and its interval; `digits` are those of its ends."""
    low, high = (percent(end, digits) for end in interval)
    return f"{percent(value)} <small>[{low}, {high}]</small>"


def warning_list(lines: Sequence[str]) -> str:
    """Make a list of warnings from lines of HTML."""
    if not lines:
        return "<p>No warnings.</p>"
    return f'<ul class="warnings">{"".join(f"<li>{line}</li>" for line in lines)}</ul>'


def tiles(figures: Mapping[str, str]) -> str:
    """Show a few important figures, as HTML by label, in large type."""
    shown = "".join(f"<div><dt>{text(label)}</dt><dd>{figure}</dd></div>" for label, figure in figures.items())
    return f'<dl class="tiles">{shown}</dl>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str, kind: str = "") -> str:
    """Make a table from cells of HTML; the first cell of each row is its heading."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    labels = [re.sub(r"<[^>]*>", "", cell) for cell in head]
    body = "".join(_row(row, labels) for row in rows)
    whole = f"<caption>{caption}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody>"
    return scrolled(f'<table class="{kind}">{whole}</table>', caption)


def _row(cells: Sequence[str], labels: Sequence[str]) -> str:
    """Make a row whose cells name their column, for screens too narrow for columns."""
    first, *rest = cells
    pairs = zip(labels[1:], rest, strict=True)
    listed = "".join(f'<td data-of="{of}">{cell}</td>' for of, cell in pairs)
    return f'<tr><th scope="row">{first}</th>{listed}</tr>'


def scrolled(content: str, label: str) -> str:
    """Put something wide into a box that scrolls and can be reached by keyboard."""
    plain = re.sub(r"<[^>]*>", "", label)
    return f'<div class="wide" role="region" tabindex="0" aria-label="{plain}">{content}</div>'


def folded(summary: str, content: str) -> str:
    """Hide what most readers do not need behind its summary."""
    return f"<details><summary>{summary}</summary>{content}</details>"


def side_by_side(*pictures: str) -> str:
    """Put figures beside each other, or below each other on a narrow screen."""
    return f'<div class="pair">{"".join(f"<figure>{drawn}</figure>" for drawn in pictures)}</div>'


def scale_floor(intervals: Iterable[tuple[float, float]]) -> float:
    """Find where a scale of class accuracies begins: at a tenth, below all intervals."""
    return max(0.0, int(10 * min(low for low, _ in intervals)) / 10)


def class_scale(floor: float) -> str:
    """Make the heading of a column that draws class accuracies from `floor` to 1."""
    return f'<span class="scale"><span>{percent(floor, 0)}</span><span>accuracy, %</span><span>100</span></span>'


def copyable(command: str, place: str) -> str:
    """Show a command with a button that copies it; `place` is the id of its text."""
    return (
        f'<div class="command"><pre><code id="{place}">{_verbatim(command)}</code></pre>'
        f'<button type="button" data-copy="{place}">Copy</button></div>'
    )


def embedded(data: Any, place: str) -> str:
    """Embed data for the page's script; no string inside can end the element."""
    written = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for mark in "<>&":
        written = written.replace(mark, f"\\u{ord(mark):04x}")
    return f'<script type="application/json" id="{place}">{written}</script>'


def _verbatim(command: str) -> str:
    """Escape text that will be copied; spaces stay as they are."""
    return html.escape(visible(command), quote=True)
