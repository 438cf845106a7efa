"""Figure 1: the density of all eigenvalues with the spikes marked, and its bulk."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hessian_surgery.curvature.density import Density
from hessian_surgery.report.figure_style import VERMILION, new_figure
from hessian_surgery.reproduce.item import Item, Measured
from hessian_surgery.reproduce.row import Row, claim_row, shown_row
from hessian_surgery.reproduce.spectrum_runs import spectrum_run
from hessian_surgery.reproduce.workbench import Workbench
from hessian_surgery.studies.spectrum import draw_density

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Section 5.1, and section 4.4: the kernel's σ² and "about 30 minutes on a CPU".
PAPER_MEDIAN = 0.0134
VARIANCE = 1e-5
PAPER_SECONDS = 1800.0
OTHER = "another network: eigenvalues scale with its weights and its loss"


def measure(bench: Workbench, split: int) -> Measured:
    """The bulk in figures; and the whole density of the first split, for the figure."""
    found = spectrum_run(bench, split)
    return {
        "eigenvalues": found["eigenvalues"],
        "bulk": found["bulk"],
        "lowest": min(min(nodes) for nodes in found["density"]["nodes"]),
        "seconds": found["seconds"],
        "classes": len(bench.classes),
        "density": found["density"] if split == 0 else None,
    }


def rows(measured: dict[str, Sequence[Measured]]) -> list[Row]:
    """What the figure shows, as numbers."""
    found = measured["cifar10"]
    bulks = [one["bulk"] for one in found]
    widths = [100 * bulk["quantiles"][-1] / one["eigenvalues"][0] for bulk, one in zip(bulks, found, strict=True)]
    kernel = [math.sqrt(VARIANCE) / bulk["resolution"] for bulk in bulks]
    spikes = found[0]["classes"] - 1
    shares = [100 * sum(one["eigenvalues"][:spikes]) / one["bulk"]["trace"] for one in found]
    return [
        claim_row(
            "|λ| that 99.9 % of the bulk stay below, over λ₁",
            "%",
            None,
            widths,
            max(widths) < 1,
            "the bulk is near zero: 99.9 % of it is within 1 % of λ₁, on every split",
        ),
        claim_row(
            "the kernel's σ over the mean distance of Ritz values in the bulk",
            "",
            None,
            kernel,
            min(kernel) >= 1,
            "the kernel is as wide as what 90 steps resolve: the curve is a density, not a comb of "
            "Ritz values, on every split",
        ),
        claim_row(
            f"the trace that {spikes} spikes hold",
            "%",
            None,
            shares,
            min(shares) > 50,
            "few eigenvalues carry the curvature: more than half of the trace, on every split",
        ),
        shown_row("median |λ| of the bulk", "", PAPER_MEDIAN, [bulk["median"] for bulk in bulks], OTHER),
        shown_row("trace", "", None, [bulk["trace"] for bulk in bulks], OTHER),
        shown_row("lowest eigenvalue of the density", "", None, [one["lowest"] for one in found], OTHER),
        shown_row(
            "eigenvalues below minus the resolution",
            "%",
            None,
            [100 * bulk["negative_share"] for bulk in bulks],
            "the paper shows none",
        ),
        shown_row(
            "time of the density", "s", PAPER_SECONDS, [one["seconds"]["density"] for one in found], "other hardware"
        ),
    ]


def draw(measured: dict[str, Sequence[Measured]]) -> "Figure":
    """Draw the first split's density with its spikes, and its bulk."""
    found = measured["cifar10"][0]
    given = found["density"]
    nodes = tuple(np.array(values) for values in given["nodes"])
    weights = tuple(np.array(values) for values in given["weights"])
    density = Density(nodes, weights, given["variance"], given["dimension"])
    highest = found["eigenvalues"][0]
    spikes = found["eigenvalues"][: found["classes"] - 1]
    lowest = found["lowest"]
    figure, (left, right) = new_figure(1, 2, size=(10, 4.4))
    draw_density(left, density, (min(1.05 * lowest, -0.02 * highest), 1.05 * highest), 0.002 * highest)
    for i, value in enumerate(spikes):
        left.axvline(value, color=VERMILION, linestyle="--", linewidth=0.8, label=None if i else "spikes")
    left.set_title("Whole spectrum")
    left.legend(frameon=False, fontsize=9)
    edge = found["eigenvalues"][-1]
    width = max(math.sqrt(density.variance), found["bulk"]["resolution"])
    draw_density(right, density, (max(1.05 * lowest, -edge), edge), width)
    right.set_title("Bulk")
    return figure


ITEM = Item("spectrum", ("cifar10",), measure, rows, draw)
