"""Text, names, tables and data as HTML in which nothing that a user wrote is read as markup."""

import html
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

# What may not stand in an HTML document; tabs and line ends may, and are made spaces.
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def text(value: object) -> str:
    """A value as text: escaped, on one line, and such that it can be written as UTF-8."""
    whole = CONTROLS.sub("\N{REPLACEMENT CHARACTER}", writable(str(value)))
    return html.escape(" ".join(whole.split()), quote=True)


def writable(value: str) -> str:
    """A string without what UTF-8 cannot hold, such as the bytes of a file's name that is in another encoding."""
    return value.encode("utf-8", "replace").decode("utf-8")


def minus(figures: str) -> str:
    """Figures with a minus that is one."""
    return figures.replace("-", "−")


def name(value: object) -> str:
    """A class's name, which may run from right to left without turning its surroundings round."""
    return f"<bdi>{text(value)}</bdi>"


def short(value: object, length: int) -> str:
    """A name for a place that holds so many letters."""
    whole = " ".join(str(value).split())
    return text(whole if len(whole) <= length else whole[: length - 1] + "…")


def percent(fraction: float, digits: int = 1) -> str:
    """A fraction in percent, without the sign."""
    return f"{100 * fraction:.{digits}f}"


def points(difference: float, digits: int = 1) -> str:
    """A difference of fractions in percentage points."""
    return minus(f"{100 * difference:+.{digits}f}")


def with_interval(value: float, interval: tuple[float, float]) -> str:
    """A fraction in percent, and its interval."""
    low, high = (percent(end, 0) for end in interval)
    return f"{percent(value)} <small>[{low}, {high}]</small>"


def warning_list(lines: Sequence[str]) -> str:
    """Warnings as a list, from lines of HTML."""
    return (
        f'<ul class="warnings">{"".join(f"<li>{line}</li>" for line in lines)}</ul>' if lines else "<p>No warnings.</p>"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str, kind: str = "") -> str:
    """A table from cells of HTML; the first cell of each row is its heading."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    labels = [re.sub(r"<[^>]*>", "", cell) for cell in head]
    body = "".join(_row(row, labels) for row in rows)
    whole = f"<caption>{caption}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody>"
    return scrolled(f'<table class="{kind}">{whole}</table>', caption)


def _row(cells: Sequence[str], labels: Sequence[str]) -> str:
    """A row whose cells know their column's heading, for screens too narrow for columns."""
    first, *rest = cells
    pairs = zip(labels[1:], rest, strict=True)
    listed = "".join(f'<td data-of="{of}">{cell}</td>' for of, cell in pairs)
    return f'<tr><th scope="row">{first}</th>{listed}</tr>'


def scrolled(content: str, label: str) -> str:
    """Something wide, in a box that scrolls by itself and can be reached by keyboard."""
    plain = re.sub(r"<[^>]*>", "", label)
    return f'<div class="wide" role="region" tabindex="0" aria-label="{plain}">{content}</div>'


def folded(summary: str, content: str) -> str:
    """What most readers do not need, behind a line."""
    return f"<details><summary>{summary}</summary>{content}</details>"


def side_by_side(*pictures: str) -> str:
    """Figures beside each other, or below where there is no room."""
    return f'<div class="pair">{"".join(f"<figure>{drawn}</figure>" for drawn in pictures)}</div>'


def scale_floor(intervals: Iterable[tuple[float, float]]) -> float:
    """Where the scale of class accuracies begins, so that all intervals are on it: a whole tenth."""
    return max(0.0, int(10 * min(low for low, _ in intervals)) / 10)


def class_scale(floor: float) -> str:
    """The heading of a column of class accuracies that are drawn from `floor` to 1."""
    return f'<span class="scale"><span>{percent(floor, 0)}</span><span>accuracy, %</span><span>100</span></span>'


def copyable(command: str, place: str) -> str:
    """A command with a button that copies it; `place` is the id of its text."""
    return (
        f'<div class="command"><pre><code id="{place}">{_verbatim(command)}</code></pre>'
        f'<button type="button" data-copy="{place}">Copy</button></div>'
    )


def embedded(data: Any, place: str) -> str:
    """Data for the page's script, which nothing inside can end."""
    written = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for mark in "<>&":
        written = written.replace(mark, f"\\u{ord(mark):04x}")
    return f'<script type="application/json" id="{place}">{written}</script>'


def _verbatim(command: str) -> str:
    """Text that is copied: escaped, and otherwise as it is."""
    return html.escape(writable(command), quote=True)
