"""The page's figures as inline SVG: convergence, spectrum, the sensitivity matrix and the front."""

import math
from collections.abc import Sequence
from typing import Any

from hessian_surgery.report.markup import minus, percent, short, text
from hessian_surgery.report.svg import Panel, axes, line, look, mark, picture, power, spread, ticks

# What changes no answer: its point is the model's own.
UNSEEN = ("nothing", "temperature")
# Shades of each sign in the sensitivity matrix: one path for all cells of a shade keeps large matrices small.
SHADES = 12


def convergence(base: dict[str, float], iterations: Sequence[dict[str, Any]]) -> str:
    """σ after each iteration on the images that decide, and what was tried and rolled back."""
    last = len(iterations)
    sigmas = [100 * base["sigma"], *(100 * record["sigma"] for record in iterations)]
    tried = [100 * record["candidate_sigma"] for record in iterations]
    panel = Panel(46, 26, 340, 150, (0, max(1, last)), (0, spread([0.0, *sigmas, *tried], 0.04)[1]))
    steps = _whole(last)
    parts = [axes(panel, "iteration", "σ on the calibration images (pp)", steps, ticks(0, panel.y[1], 5))]
    parts.append(line(panel, list(enumerate(sigmas)), "c1"))
    parts.append(mark("circle", *panel.at(0, sigmas[0]), "c1 hollow"))
    for i, record in enumerate(iterations, 1):
        if record["accepted"]:
            parts.append(mark("circle", *panel.at(i, sigmas[i]), "c1"))
        elif record["alpha_max"] > 0:
            parts.append(mark("cross", *panel.at(i, tried[i - 1]), "c2"))
    words = [f"{i}: {'accepted' if r['accepted'] else 'rolled back'}" for i, r in enumerate(iterations, 1)]
    return picture(400, 215, parts, "σ after each iteration", "; ".join(words))


def amplitudes(iterations: Sequence[dict[str, Any]]) -> str:
    """The length of each iteration's step; hollow where it was rolled back."""
    last, longest = len(iterations), max(record["alpha_max"] for record in iterations) or 1.0
    panel = Panel(46, 26, 340, 150, (0.4, max(1, last) + 0.6), (0, 1.08 * longest))
    parts = [axes(panel, "iteration", "amplitude (length of the step)", _whole(last)[1:], ticks(0, panel.y[1], 5))]
    width = min(28.0, 0.6 * panel.width / (last + 0.2))
    for i, record in enumerate(iterations, 1):
        x, top = panel.at(i, record["alpha_max"])
        kind = "c1" if record["accepted"] else "c2 hollow"
        height = panel.top + panel.height - top
        parts.append(
            f'<rect class="mark {kind}" x="{x - width / 2:.1f}" y="{top}" width="{width:.1f}" height="{height:.1f}"/>'
        )
    said = "; ".join(f"{i}: {record['alpha_max']:.3g}" for i, record in enumerate(iterations, 1))
    return picture(400, 215, parts, "Amplitude of each iteration", said)


def spectrum(eigenvalues: Sequence[float], residuals: Sequence[float], tolerance: float) -> str:
    """Spikes with the uncertainty that their residuals leave; hollow where they have not converged."""
    logs = [math.log10(max(value, 1e-12)) for value in eigenvalues]
    low, high = math.floor(min(logs) - 0.05), math.ceil(max(logs) + 0.05)
    panel = Panel(46, 26, 340, 150, (0.4, len(logs) + 0.6), (low, high))
    parts = [axes(panel, "spike", "eigenvalue λ", _whole(len(logs))[1:], range(low, high + 1), power)]
    for i, (value, residual) in enumerate(zip(logs, residuals, strict=True), 1):
        x, y = panel.at(i, value)
        kind = "c1" if residual <= tolerance else "c2 hollow"
        reach = [max(low, value + math.log10(max(1e-9, 1 + sign * residual))) for sign in (-1, 1)]
        ends = [panel.at(i, min(high, end))[1] for end in reach]
        parts.append(f'<line class="stem" x1="{x}" x2="{x}" y1="{panel.top + panel.height}" y2="{y}"/>')
        parts.append(f'<line class="bar {kind}" x1="{x}" x2="{x}" y1="{ends[0]}" y2="{ends[1]}"/>')
        parts.append(mark("circle", x, y, kind, 4 if len(logs) <= 40 else 2))
    said = f"{len(logs)} spikes from {max(eigenvalues):.3g} down to {min(eigenvalues):.3g}"
    return picture(400, 215, parts, "Leading eigenvalues of the loss Hessian", said)


def residual_chart(residuals: Sequence[float], tolerance: float) -> str:
    """The relative residual of each spike against the tolerance."""
    logs = [math.log10(max(value, 1e-12)) for value in residuals]
    limit = math.log10(tolerance)
    low, high = math.floor(min(*logs, limit) - 0.05), math.ceil(max(*logs, limit) + 0.05)
    panel = Panel(46, 26, 340, 150, (0.4, len(logs) + 0.6), (low, high))
    parts = [axes(panel, "spike", "relative residual", _whole(len(logs))[1:], range(low, high + 1), power)]
    parts.append(line(panel, [(panel.x[0], limit), (panel.x[1], limit)], "c2", "5 3"))
    for i, value in enumerate(logs, 1):
        kind = ("circle", "c1") if value <= limit else ("cross", "c2")
        parts.append(mark(kind[0], *panel.at(i, value), kind[1], 4 if len(logs) <= 40 else 2))
    loose = sum(value > limit for value in logs)
    return picture(
        400, 215, parts, "Residuals of the spikes", f"{loose} of {len(logs)} above the tolerance {tolerance:g}"
    )


def heat_map(matrix: Sequence[Sequence[float]], rows: Sequence[str], columns: Sequence[str]) -> str:
    """How each class's accuracy (column) answers to each direction (row): blue up, orange down."""
    left, room = 128, 600
    top = 16 + 4.4 * max(min(14, len(title)) for title in columns)
    width, height = room / len(columns), max(4.0, min(20.0, 760 / len(rows)))
    largest = max(abs(value) for row in matrix for value in row) or 1.0
    shades: dict[tuple[str, int], list[str]] = {}
    numbers = []
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            shade = round(SHADES * math.sqrt(abs(value) / largest))  # the root lets small ones show
            place = f"M{left + j * width:.1f} {top + i * height:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z"
            shades.setdefault(("up" if value > 0 else "down", shade), []).append(place)
            if width >= 34 and height >= 12:
                x, y = left + (j + 0.5) * width, top + (i + 0.5) * height + 3.5
                numbers.append(f'<text class="cell" x="{x:.1f}" y="{y:.1f}">{_signed(value)}</text>')
    cells = [
        f'<path class="{sign}" fill-opacity="{shade / SHADES:.2f}" d="{"".join(places)}"/>'
        for (sign, shade), places in sorted(shades.items())
        if shade
    ]
    # The group is never opaque, so that figures can be read on every shade.
    parts = [f'<g class="cells">{"".join(cells)}</g>', *_labels(rows, columns, left, top, width, height), *numbers]
    parts.append(f'<rect class="frame" x="{left}" y="{top}" width="{room}" height="{height * len(rows):.1f}"/>')
    return picture(
        left + room + 32,
        top + height * len(rows) + 4,
        parts,
        "Sensitivity matrix",
        f"{len(rows)} directions by {len(columns)} classes",
    )


def front(methods: Sequence[dict[str, Any]], base: dict[str, float], what: str, label: str) -> str:
    """One figure of every method against the change of accuracy, on held-out images."""
    shown = front_names(methods)
    points = [(100 * r["delta_accuracy"], 100 * r[what]) for r in methods if r["name"] in shown and r["splits"]]
    at = (0.0, 100 * base[what])
    panel = Panel(46, 26, 340, 235, spread([x for x, _ in (*points, at)]), spread([y for _, y in (*points, at)]))
    parts = [axes(panel, "change of accuracy (pp)", label, ticks(*panel.x), ticks(*panel.y))]
    for i, name in enumerate(shown):
        colour, shape, stroke = look(i)
        rows = sorted((r for r in methods if r["name"] == name and r["splits"]), key=lambda r: -r["delta_accuracy"])
        places = [(100 * r["delta_accuracy"], 100 * r[what]) for r in rows]
        if what == "sigma":
            for (x, y), row in zip(places, rows, strict=True):
                ends = [panel.at(x, y + sign * 100 * row["sigma_se"]) for sign in (-1, 1)]
                across, upright = f'x1="{ends[0][0]}" x2="{ends[0][0]}"', f'y1="{ends[0][1]}" y2="{ends[1][1]}"'
                parts.append(f'<line class="error {colour}" {across} {upright}/>')
        parts.append(line(panel, places, colour, stroke))
        parts += [mark(shape, *panel.at(*place), colour, 3.2) for place in places]
    parts.append(mark("cross", *panel.at(*at), "start", 5))
    return picture(400, 302, parts, label, f"{len(shown)} methods against the change of accuracy; figures in the table")


def front_names(methods: Sequence[dict[str, Any]]) -> list[str]:
    """The methods that have points of their own, in order."""
    return [n for n in dict.fromkeys(r["name"] for r in methods if r["splits"]) if n not in UNSEEN]


def front_legend(methods: Sequence[dict[str, Any]]) -> str:
    """Which mark is which method."""
    samples = {"the model as it is": mark("cross", 13, 6, "start", 4)}
    for i, name in enumerate(front_names(methods)):
        colour, shape, stroke = look(i)
        dashes = f' stroke-dasharray="{stroke}"' if stroke else ""
        through = f'<line class="line {colour}" x1="1" x2="25" y1="6" y2="6"{dashes}/>'
        samples[name] = through + mark(shape, 13, 6, colour, 3.2)
    items = (
        f'<li><svg viewBox="0 0 26 12" aria-hidden="true">{drawn}</svg>{text(title)}</li>'
        for title, drawn in samples.items()
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def flow_bar(count: int, most: int, kind: str) -> str:
    """A count as a bar that grows to the left (`down`) or the right (`up`), with its figure at the end."""
    share = 80 * count / most
    start, end, side, gap = (100 - share, 100 - share, "end", -6) if kind == "down" else (0, share, "start", 6)
    return (
        f'<span class="hidden">{count}</span><svg class="flow" aria-hidden="true">'
        f'<rect class="{kind}" x="{start:.1f}%" width="{share:.1f}%" y="3" height="12"/>'
        f'<text x="{end:.1f}%" dx="{gap}" y="13.5" text-anchor="{side}">{count}</text></svg>'
    )


def foreseen_front(objectives: dict[str, list[dict[str, Any]]], base: dict[str, Any]) -> str:
    """σ against accuracy of every point of the explorer; its script marks the one that is shown."""
    every = [point for points in objectives.values() for point in points]
    across, upright = ([100 * p[key] for p in (*every, base)] for key in ("accuracy", "sigma"))
    panel = Panel(46, 26, 340, 170, spread(across), spread(upright))
    parts = [axes(panel, "foreseen accuracy (%)", "foreseen σ (pp)", ticks(*panel.x), ticks(*panel.y))]
    for i, (key, points) in enumerate(objectives.items()):
        colour, shape, stroke = look(i)
        places = [(100 * p["accuracy"], 100 * p["sigma"]) for p in points]
        parts.append(line(panel, places, colour, stroke))
        marks = "".join(mark(shape, *panel.at(*place), colour, 3.2) for place in places)
        parts.append(f'<g data-front="{key}">{marks}</g>')
    parts.append(mark("cross", *panel.at(100 * base["accuracy"], 100 * base["sigma"]), "start", 5))
    return picture(400, 236, parts, "Foreseen σ against foreseen accuracy", "the cross is the model as it is")


def interval_row(
    floor: float,
    shown: tuple[float, float, float],
    before: tuple[float, float, float] | None = None,
    kind: str = "same",
) -> str:
    """A class's accuracy (low, value, high), and before, on a scale from `floor` to 1 as wide as its cell."""

    def bar(interval: tuple[float, float, float], kind: str, y: float, radius: float) -> str:
        low, value, high = (f"{percent(max(0.0, end - floor) / (1 - floor))}%" for end in interval)
        return (
            f'<line class="{kind}" x1="{low}" x2="{high}" y1="{y}" y2="{y}"/>'
            f'<circle class="{kind}" cx="{value}" cy="{y}" r="{radius}"/>'
        )

    first = bar(before, "was", 7, 3.5) if before else ""
    return f'<svg class="range" aria-hidden="true">{first}{bar(shown, f"is {kind}", 15 if before else 11, 4.5)}</svg>'


def _labels(
    rows: Sequence[str], columns: Sequence[str], left: float, top: float, width: float, height: float
) -> list[str]:
    """Names beside rows and above columns; of many only some, so that they can be read."""
    every_row, every_column = math.ceil(10 / height), math.ceil(15 / width)
    parts = []
    for i in range(0, len(rows), every_row):
        y = top + (i + 0.5) * height + 3.5
        parts.append(f'<text class="tick" x="{left - 6}" y="{y:.1f}" text-anchor="end">{short(rows[i], 20)}</text>')
    for j in range(0, len(columns), every_column):
        x = left + (j + 0.5) * width + 3
        turned = f'transform="translate({x:.1f} {top - 6}) rotate(-50)"'
        parts.append(f'<text class="tick" {turned}>{short(columns[j], 14)}</text>')
    return parts


def _whole(last: int) -> list[float]:
    """0 and some whole numbers up to `last`."""
    return [0.0, *(value for value in ticks(1, max(last, 2), 8) if value == int(value) and 1 <= value <= max(last, 1))]


def _signed(value: float) -> str:
    """A figure for a small cell; nothing where it rounds to zero."""
    rounded = minus(f"{value:+.{0 if abs(value) >= 10 else 1}f}")
    return "" if rounded.strip("+−") == "0.0" else rounded
