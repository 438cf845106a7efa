"""The figures of a page as inline SVG: iterations, spectrum, responses, fronts, classes, flows."""

import math
from collections.abc import Sequence
from typing import Any

from hessian_surgery.markup import minus, percent, short, text
from hessian_surgery.report.figure_data import (
    FRONT_LABELS,
    Convergence,
    Responses,
    Spike,
    front_lines,
    front_names,
)
from hessian_surgery.report.svg import Panel, axes, line, look, mark, picture, power, spread, ticks

# Shades of each sign in a heat map. All cells of a shade share one path, which keeps it small.
SHADES = 12


def convergence(iterations: Convergence) -> str:
    """Draw σ after each iteration, and what was tried and rolled back."""
    last = len(iterations.accepted)
    shown = [0.0, *iterations.sigma, *(sigma for _, sigma in iterations.rolled_back)]
    panel = Panel(46, 26, 340, 150, (0, max(1, last)), (0, spread(shown, 0.04)[1]))
    y_ticks = ticks(0, panel.y[1], 5)
    parts = [axes(panel, "iteration", "σ on the calibration images (pp)", _whole_ticks(last), y_ticks)]
    parts.append(line(panel, list(enumerate(iterations.sigma)), "c1"))
    parts.append(mark("circle", *panel.at(0, iterations.sigma[0]), "c1 hollow"))
    for i, accepted in enumerate(iterations.accepted, 1):
        if accepted:
            parts.append(mark("circle", *panel.at(i, iterations.sigma[i]), "c1"))
    parts += [mark("cross", *panel.at(i, sigma), "c2") for i, sigma in iterations.rolled_back]
    words = [f"{i}: {outcome}" for i, outcome in enumerate(iterations.outcomes, 1)]
    return picture(400, 215, parts, "σ after each iteration", "; ".join(words))


def step_lengths(iterations: Convergence) -> str:
    """Draw the length of each iteration's step; hollow if it was rolled back."""
    last = len(iterations.lengths)
    longest = max(iterations.lengths) or 1.0
    label = iterations.length_label
    panel = Panel(46, 26, 340, 150, (0.4, max(1, last) + 0.6), (0, 1.08 * longest))
    parts = [axes(panel, "iteration", label, _whole_ticks(last)[1:], ticks(0, panel.y[1], 5))]
    width = min(28.0, 0.6 * panel.width / (last + 0.2))
    for i, (length, accepted) in enumerate(zip(iterations.lengths, iterations.accepted, strict=True), 1):
        x, top = panel.at(i, length)
        kind = "c1" if accepted else "c2 hollow"
        height = panel.top + panel.height - top
        parts.append(
            f'<rect class="mark {kind}" x="{x - width / 2:.1f}" y="{top}" width="{width:.1f}" height="{height:.1f}"/>'
        )
    said = "; ".join(f"{i}: {length:.3g}" for i, length in enumerate(iterations.lengths, 1))
    return picture(400, 215, parts, f"Each iteration: {label}", said)


def spectrum(spikes: Sequence[Spike]) -> str:
    """Draw spikes with the uncertainty that their residuals leave; hollow if not converged.

    One that is not positive, as the last of few Lanczos steps may be, is drawn at the bottom.
    """
    ranges = [[math.log10(end) for end in spike.drawn_range] for spike in spikes]
    values = [value for spike, (_, value, _) in zip(spikes, ranges, strict=True) if spike.eigenvalue > 0]
    panel = _logarithmic_panel(len(spikes), values)
    bottom, top = panel.y
    parts = [_spike_axes(panel, "eigenvalue λ", len(spikes))]
    for i, (spike, (low, value, high)) in enumerate(zip(spikes, ranges, strict=True), 1):
        x, y = panel.at(i, max(bottom, value))
        kind = "c1" if spike.converged else "c2 hollow"
        y1, y2 = (panel.at(i, min(top, max(bottom, end)))[1] for end in (low, high))
        parts.append(f'<line class="stem" x1="{x}" x2="{x}" y1="{panel.top + panel.height}" y2="{y}"/>')
        parts.append(f'<line class="bar {kind}" x1="{x}" x2="{x}" y1="{y1}" y2="{y2}"/>')
        parts.append(mark("circle", x, y, kind, _spike_size(spikes)))
    eigenvalues = [spike.eigenvalue for spike in spikes]
    said = f"{len(spikes)} spikes from {max(eigenvalues):.3g} down to {min(eigenvalues):.3g}"
    return picture(400, 215, parts, "Leading eigenvalues of the loss Hessian", said)


def residual_chart(spikes: Sequence[Spike], tolerance: float) -> str:
    """Draw the relative residual of each spike against the tolerance."""
    logs = [math.log10(spike.drawn_residual) for spike in spikes]
    limit = math.log10(tolerance)
    panel = _logarithmic_panel(len(spikes), [*logs, limit])
    parts = [_spike_axes(panel, "relative residual", len(spikes))]
    parts.append(line(panel, [(panel.x[0], limit), (panel.x[1], limit)], "c2", "5 3"))
    for i, (spike, value) in enumerate(zip(spikes, logs, strict=True), 1):
        shape, kind = ("circle", "c1") if spike.converged else ("cross", "c2")
        parts.append(mark(shape, *panel.at(i, value), kind, _spike_size(spikes)))
    unconverged = sum(not spike.converged for spike in spikes)
    said = f"{unconverged} of {len(spikes)} above the tolerance {tolerance:g}"
    return picture(400, 215, parts, "Residuals of the spikes", said)


def _logarithmic_panel(count: int, logs: Sequence[float]) -> Panel:
    """A panel for `count` spikes, in whole powers of ten."""
    low = math.floor(min(logs) - 0.05)
    high = math.ceil(max(logs) + 0.05)
    return Panel(46, 26, 340, 150, (0.4, count + 0.6), (low, high))


def _spike_axes(panel: Panel, label: str, count: int) -> str:
    low, high = map(int, panel.y)
    return axes(panel, "spike", label, _whole_ticks(count)[1:], range(low, high + 1), power)


def _spike_size(spikes: Sequence[Spike]) -> int:
    return 4 if len(spikes) <= 40 else 2


def heat_map(responses: Responses) -> str:
    """Draw responses of classes (columns) to directions (rows): blue up, orange down."""
    rows = responses.directions
    columns = responses.classes
    left = 128
    room = 600
    top = 16 + 4.4 * max(min(14, len(title)) for title in columns)
    width = room / len(columns)
    height = max(4.0, min(20.0, 760 / len(rows)))
    largest = responses.largest
    shades: dict[tuple[str, int], list[str]] = {}
    numbers = []
    for i, row in enumerate(responses.values):
        for j, value in enumerate(row):
            shade = round(SHADES * math.sqrt(abs(value) / largest))  # the root lets small ones show
            place = f"M{left + j * width:.1f} {top + i * height:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z"
            shades.setdefault(("up" if value > 0 else "down", shade), []).append(place)
            if width >= 34 and height >= 12:
                x = left + (j + 0.5) * width
                y = top + (i + 0.5) * height + 3.5
                numbers.append(f'<text class="cell" x="{x:.1f}" y="{y:.1f}">{_signed(value)}</text>')
    cells = [
        f'<path class="{sign}" fill-opacity="{shade / SHADES:.2f}" d="{"".join(places)}"/>'
        for (sign, shade), places in sorted(shades.items())
        if shade
    ]
    # The group is never opaque: numbers must be readable on every shade.
    parts = [f'<g class="cells">{"".join(cells)}</g>', *_labels(rows, columns, left, top, width, height), *numbers]
    parts.append(f'<rect class="frame" x="{left}" y="{top}" width="{room}" height="{height * len(rows):.1f}"/>')
    said = f"{len(rows)} directions by {len(columns)} classes"
    return picture(left + room + 32, top + height * len(rows) + 4, parts, "Responses of classes to directions", said)


def front(methods: Sequence[dict[str, Any]], base: dict[str, float], figure: str) -> str:
    """Draw `figure` ("sigma" or "worst") of every method against the change of accuracy."""
    lines = front_lines(methods, figure)
    start = (0.0, 100 * base[figure])
    points = [start, *(point for one in lines for point in one.points)]
    panel = Panel(46, 26, 340, 235, spread(x for x, _ in points), spread(y for _, y in points))
    label = FRONT_LABELS[figure]
    parts = [axes(panel, "change of accuracy (pp)", label, ticks(*panel.x), ticks(*panel.y))]
    for i, one in enumerate(lines):
        colour, shape, stroke = look(i)
        for (change, value), error in zip(one.points, one.errors, strict=False):
            x, y1 = panel.at(change, value - error)
            _, y2 = panel.at(change, value + error)
            parts.append(f'<line class="error {colour}" x1="{x}" x2="{x}" y1="{y1}" y2="{y2}"/>')
        parts.append(line(panel, one.points, colour, stroke))
        parts += [mark(shape, *panel.at(*point), colour, 3.2) for point in one.points]
    parts.append(mark("cross", *panel.at(*start), "start", 5))
    said = f"{len(lines)} methods against the change of accuracy; the table has the figures"
    return picture(400, 302, parts, label, said)


def front_legend(methods: Sequence[dict[str, Any]]) -> str:
    """Say which mark is which method."""
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
    """Draw a count as a bar that grows left ("down") or right ("up"), its number at the end."""
    share = 80 * count / most
    start, end, side, gap = (100 - share, 100 - share, "end", -6) if kind == "down" else (0, share, "start", 6)
    return (
        f'<span class="hidden">{count}</span><svg class="flow" aria-hidden="true">'
        f'<rect class="{kind}" x="{start:.1f}%" width="{share:.1f}%" y="3" height="12"/>'
        f'<text x="{end:.1f}%" dx="{gap}" y="13.5" text-anchor="{side}">{count}</text></svg>'
    )


def predicted_front(objectives: dict[str, list[dict[str, Any]]], base: dict[str, Any]) -> str:
    """Draw σ against accuracy for every point of the explorer; its script marks the one shown."""
    every = [point for points in objectives.values() for point in points]
    across, upright = ([100 * p[key] for p in (*every, base)] for key in ("accuracy", "sigma"))
    panel = Panel(46, 26, 340, 170, spread(across), spread(upright))
    parts = [axes(panel, "predicted accuracy (%)", "predicted σ (pp)", ticks(*panel.x), ticks(*panel.y))]
    for i, (key, points) in enumerate(objectives.items()):
        colour, shape, stroke = look(i)
        places = [(100 * p["accuracy"], 100 * p["sigma"]) for p in points]
        parts.append(line(panel, places, colour, stroke))
        marks = "".join(mark(shape, *panel.at(*place), colour, 3.2) for place in places)
        parts.append(f'<g data-front="{key}">{marks}</g>')
    parts.append(mark("cross", *panel.at(100 * base["accuracy"], 100 * base["sigma"]), "start", 5))
    return picture(400, 236, parts, "Predicted σ against predicted accuracy", "the cross is the model as it is")


def interval_row(
    floor: float,
    shown: tuple[float, float, float],
    before: tuple[float, float, float] | None = None,
    kind: str = "same",
) -> str:
    """Draw a class's accuracy in a table cell, on a scale from `floor` to 1.

    Args:
        floor: where the scale begins.
        shown: low end, value and high end.
        before: the same for the starting model, drawn above.
        kind: "up", "down" or "same", the direction of a significant change.
    """

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
    """Names beside rows and above columns; only some of many, to keep them readable."""
    every_row = math.ceil(10 / height)
    every_column = math.ceil(15 / width)
    parts = []
    for i in range(0, len(rows), every_row):
        y = top + (i + 0.5) * height + 3.5
        parts.append(f'<text class="tick" x="{left - 6}" y="{y:.1f}" text-anchor="end">{short(rows[i], 20)}</text>')
    for j in range(0, len(columns), every_column):
        x = left + (j + 0.5) * width + 3
        turned = f'transform="translate({x:.1f} {top - 6}) rotate(-50)"'
        parts.append(f'<text class="tick" {turned}>{short(columns[j], 14)}</text>')
    return parts


def _whole_ticks(last: int) -> list[float]:
    """0 and some whole numbers up to `last`."""
    return [0.0, *(value for value in ticks(1, max(last, 2), 8) if value == int(value) and 1 <= value <= max(last, 1))]


def _signed(value: float) -> str:
    """A number for a small cell; empty if it rounds to zero."""
    rounded = minus(f"{value:+.{0 if abs(value) >= 10 else 1}f}")
    return "" if rounded.strip("+−") == "0.0" else rounded
