"""Fronts as a figure: σ and the worst class against the change of accuracy, a line per method."""

from typing import TYPE_CHECKING

from hessian_surgery.comparison.fronts import Fronts
from hessian_surgery.comparison.row import Row
from hessian_surgery.report.figure_data import UNSEEN
from hessian_surgery.report.figure_style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
# When the colours repeat, markers and line styles change.
MARKS = "osD^v"
STROKES = ("-", "--", ":", "-.")


def draw_fronts(fronts: Fronts) -> "Figure":
    """Draw σ (left) and the worst class (right) on held-out images; bars are standard errors."""
    figure, axes = new_figure(1, 2, size=(11.0, 5.2))
    names = [n for n in dict.fromkeys(row.name for row in fronts.rows if row.splits) if n not in UNSEEN]
    for panel, what in zip(axes, ("sigma", "worst"), strict=True):
        for i, name in enumerate(names):
            rows = sorted((r for r in fronts.rows if r.name == name and r.splits), key=lambda r: -r.delta_accuracy)
            _draw_line(panel, rows, what, *_style(i))
        panel.plot(0, 100 * fronts.base[what], marker="+", markersize=14, color=GREY, label="the model as it is")
        panel.axvline(0, color=GREY, linewidth=0.8)
        panel.set_xlabel("change of accuracy (pp)")
    axes[0].set_ylabel("σ of class accuracies (pp)")
    axes[1].set_ylabel("worst class (%)")
    axes[1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    images = f"{fronts.splits} splits of {fronts.images:,} images"
    figure.suptitle(f"{len(fronts.classes)} classes, {images}; figures on the held-out ones")
    return figure


def _style(i: int) -> tuple[str, str, str]:
    """Return the colour, marker and line style of line number i."""
    turn = i // len(COLOURS)
    return COLOURS[i % len(COLOURS)], MARKS[turn % len(MARKS)], STROKES[turn % len(STROKES)]


def _draw_line(panel: "Axes", rows: list[Row], what: str, colour: str, mark: str, stroke: str) -> None:
    change = [100 * row.delta_accuracy for row in rows]
    value = [100 * getattr(row, what) for row in rows]
    if what == "sigma":
        panel.errorbar(change, value, yerr=[100 * row.sigma_se for row in rows], fmt="none", ecolor=colour, alpha=0.3)
    panel.plot(change, value, marker=mark, linestyle=stroke, color=colour, linewidth=1.4, ms=5, label=rows[0].name)
