"""The section about spikes and their residuals."""

from collections.abc import Sequence

from hessian_surgery.markup import folded, side_by_side, table
from hessian_surgery.report import page_charts
from hessian_surgery.report.figure_data import Spike
from hessian_surgery.report.page import Section


def spectrum_section(spikes: Sequence[Spike], tolerance: float) -> Section:
    """Show spikes and their residuals as figures, and as a table."""
    unconverged = sum(not spike.converged for spike in spikes)
    said = f"{unconverged} of {len(spikes)} have not converged" if unconverged else f"all {len(spikes)} have converged"
    rows = [
        (f"{i}", f"{spike.eigenvalue:.4g}", f"{spike.residual:.2g}", "yes" if spike.converged else "no")
        for i, spike in enumerate(spikes, 1)
    ]
    head = ("spike", "eigenvalue", "relative residual", "converged")
    note = (
        f'<p class="note">At a tolerance of {tolerance:g} for the relative residual, {said}. '
        "Crosses and hollow marks are spikes that have not.</p>"
    )
    drawn = side_by_side(page_charts.spectrum(spikes), page_charts.residual_chart(spikes, tolerance))
    listed = folded("Spikes as a table", table(head, rows, "Spikes and residuals", "numbers"))
    return Section("spectrum", "Spectrum: spikes and residuals", drawn + note + listed)
