"""Axes and marks as inline SVG: text can be selected, colours follow the page's theme."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hessian_surgery.markup import minus, text

# The style sheet names this many colours; after them the strokes change.
COLOURS = 6
STROKES = ("", "5 3", "1.5 2.5", "7 2 1.5 2")
SHAPES = ("circle", "square", "diamond", "up", "down")


@dataclass(frozen=True)
class Panel:
    """A rectangle to draw in, and the values at its edges."""

    left: float
    top: float
    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Place a pair of values."""
        (x0, x1), (y0, y1) = self.x, self.y
        return (
            round(self.left + self.width * (x - x0) / (x1 - x0), 1),
            round(self.top + self.height * (y1 - y) / (y1 - y0), 1),
        )


def picture(width: float, height: float, parts: Iterable[str], title: str, description: str) -> str:
    """Make a whole figure; a screen reader reads `title` and `description`."""
    said = f"{text(title)}. {text(description)}"
    return (
        f'<svg class="chart" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{said}">{"".join(parts)}</svg>'
    )


def axes(
    panel: Panel,
    x_label: str,
    y_label: str,
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    written: Callable[[float], str] = lambda value: number(value),
) -> str:
    """Draw grid lines, ticks and labels; `written` formats the ticks of the vertical axis."""
    left = panel.left
    right = left + panel.width
    top = panel.top
    bottom = top + panel.height
    parts = []
    for value in y_ticks:
        y = panel.at(panel.x[0], value)[1]
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{left - 6}" y="{y + 3.5}" text-anchor="end">{written(value)}</text>')
    for value in x_ticks:
        x = panel.at(value, panel.y[0])[0]
        parts.append(f'<line class="axis" x1="{x}" x2="{x}" y1="{bottom}" y2="{bottom + 4}"/>')
        parts.append(f'<text class="tick" x="{x}" y="{bottom + 15}" text-anchor="middle">{number(value)}</text>')
    parts.append(f'<line class="axis" x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    middle = left + panel.width / 2
    parts.append(f'<text class="label" x="{middle}" y="{bottom + 31}" text-anchor="middle">{text(x_label)}</text>')
    parts.append(f'<text class="label" x="{left - 34}" y="{top - 9}">{text(y_label)}</text>')
    return "".join(parts)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Choose at most about `most` round values within a range."""
    step = 10 ** math.floor(math.log10(max(high - low, 1e-12) / most))
    step *= next(factor for factor in (1, 2, 5, 10, 20) if (high - low) / (step * factor) <= most)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def spread(values: Iterable[float], pad: float = 0.06, least: float = 1e-9) -> tuple[float, float]:
    """Find a range that holds all values, with some room at both ends."""
    found = list(values)
    low = min(found)
    high = max(found)
    room = max((high - low) * pad, least)
    return low - room, high + room


def number(value: float) -> str:
    """Write the label of a tick."""
    return minus(f"{value:.6g}")


def power(exponent: float) -> str:
    """Write a power of ten, as a plain number if that is short."""
    if -3 <= exponent <= 4:
        return f"{10.0**exponent:,.{max(0, -int(exponent))}f}"
    return "10" + f"{int(exponent)}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def line(panel: Panel, pairs: Iterable[tuple[float, float]], kind: str, stroke: str = "") -> str:
    """Draw a line through points."""
    places = " ".join(f"{x},{y}" for x, y in (panel.at(*pair) for pair in pairs))
    dashes = f' stroke-dasharray="{stroke}"' if stroke else ""
    return f'<polyline class="line {kind}" points="{places}"{dashes}/>'


def mark(shape: str, x: float, y: float, kind: str, size: float = 4) -> str:
    """Draw a mark: a cross or one of `SHAPES`."""
    if shape == "circle":
        return f'<circle class="mark {kind}" cx="{x}" cy="{y}" r="{size}"/>'
    corners = {
        "square": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
        "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
        "up": ((0, -1.3), (1.2, 0.9), (-1.2, 0.9)),
        "down": ((0, 1.3), (1.2, -0.9), (-1.2, -0.9)),
    }
    if shape == "cross":
        across = f"l{2 * size} {2 * size}m0 {-2 * size}l{-2 * size} {2 * size}"
        return f'<path class="mark cross {kind}" d="M{x - size} {y - size}{across}"/>'
    places = " ".join(f"{x + size * dx:.1f},{y + size * dy:.1f}" for dx, dy in corners[shape])
    return f'<polygon class="mark {kind}" points="{places}"/>'


def look(i: int) -> tuple[str, str, str]:
    """Choose colour class, mark and stroke of series `i`; not colour alone tells series apart."""
    turn = i // COLOURS
    return f"c{i % COLOURS + 1}", SHAPES[i % len(SHAPES)], STROKES[turn % len(STROKES)]
