"""One style for all figures, and files of them that are complete and equal from run to run."""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hessian_surgery.errors import InputError
from hessian_surgery.files import written_beside

if TYPE_CHECKING:  # importing matplotlib takes most of a second, which only drawing should cost
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart, darkest first.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
GREY = "#7F7F7F"

STYLE: dict[Any, Any] = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.8,
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.labelsize": 11,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
}
# Text stays text, which can be searched. A fixed salt gives the same figure the same ids.
SAVING: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "hessian-surgery", "savefig.dpi": 150}
FORMATS = ("svg", "png")


def new_figure(rows: int = 1, columns: int = 1, size: tuple[float, float] = (8.0, 5.0)) -> "tuple[Figure, list[Axes]]":
    """Make an empty figure in the common style, and its axes row by row.

    The figure belongs to its caller alone: pyplot, which keeps figures for the whole process, is
    not involved.

    Args:
        rows: of axes.
        columns: of axes.
        size: width and height in inches.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def scale_eigenvalues(axes: "Axes", values: Iterable[float]) -> None:
    """Make the vertical axis logarithmic; linear near zero if a value is not positive."""
    drawn = list(values)
    if min(drawn) > 0:
        axes.set_yscale("log")
    else:
        axes.set_yscale("symlog", linthresh=1e-3 * max(map(abs, drawn)) or 1.0)


def save_figure(figure: "Figure", path: str | Path) -> None:
    """Write a figure as SVG or PNG, by the path's suffix; the file is complete or absent."""
    from matplotlib import rc_context

    path = Path(path)
    kind = path.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise InputError(f"path: got {path.name!r}; give a name that ends in .svg or .png")
    metadata = {"Date": None} if kind == "svg" else {}
    with written_beside(path) as beside, rc_context(SAVING), warnings.catch_warnings():
        # No installed font may have the letters of a class's name: the PNG then shows boxes.
        warnings.filterwarnings("ignore", message=".*missing from font")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support .* natively")
        figure.savefig(beside, format=kind, metadata=metadata)
