"""S and the spectrum as sections of a page: what an operation and a diagnosis both have."""

from collections.abc import Sequence

from hessian_surgery.report import charts
from hessian_surgery.report.markup import folded, minus, name, scrolled, side_by_side, table, text
from hessian_surgery.report.page import Section

# Up to so many classes every figure of S is in a table; beyond, the strongest of each class.
WHOLE_TABLE = 24
STRONGEST = ("strongest direction", "second", "third")
# What a row of S counts along: a step's length in weight space, or the coefficient of a planned operation's direction.
LENGTH, COEFFICIENT = "length", "coefficient"


def spike_names(count: int) -> list[str]:
    """What spikes are called, the largest eigenvalue's first."""
    return [f"spike {i + 1}" for i in range(count)]


def sensitivity_section(
    matrix: Sequence[Sequence[float]], rows: Sequence[str], classes: Sequence[str], unit: str = LENGTH
) -> Section:
    """S (K, C) as a heat map, and its figures in a table."""
    said = " (of 1, it moves logits by the median margin)" if unit == COEFFICIENT else ""
    map_ = scrolled(charts.heat_map(matrix, rows, classes), "Sensitivity matrix")
    words = (
        "<p>How each class's accuracy answers to a step along each direction: percentage points per 0.01 of its "
        f'{unit}{said}. <span class="swatch up">+</span> rises, <span class="swatch down">−</span> falls.</p>'
    )
    return Section("sensitivity", "Which direction moves which class", words + map_ + _figures(matrix, rows, classes))


def _figures(matrix: Sequence[Sequence[float]], rows: Sequence[str], classes: Sequence[str]) -> str:
    def shown(value: float) -> str:
        return minus(f"{value:+.2f}")

    if len(classes) <= WHOLE_TABLE:
        body = [(name(title), *(shown(v) for v in row)) for title, row in zip(rows, matrix, strict=True)]
        whole = table(
            ("direction", *map(name, classes)), body, "Sensitivity of each class to each direction", "numbers"
        )
        return folded("The matrix as a table", whole)
    strongest = []
    for j, title in enumerate(classes):
        ranked = sorted(range(len(rows)), key=lambda i: -abs(matrix[i][j]))[: len(STRONGEST)]
        strongest.append((name(title), *(f"{name(rows[i])} {shown(matrix[i][j])}" for i in ranked)))
    head = ("class", *STRONGEST[: len(rows)])
    return folded(
        "The strongest directions of each class", table(head, strongest, "The strongest directions of each class")
    )


def spectrum_section(eigenvalues: Sequence[float], residuals: Sequence[float], tolerance: float) -> list[Section]:
    """Spikes and their residuals, where there are spikes."""
    if not eigenvalues:
        return []
    loose = sum(residual > tolerance for residual in residuals)
    said = f"{loose} of {len(residuals)} have not converged" if loose else f"all {len(residuals)} have converged"
    drawn = charts.spectrum(eigenvalues, residuals, tolerance), charts.residual_chart(residuals, tolerance)
    rows = [
        (f"{i}", f"{value:.4g}", f"{residual:.2g}", "yes" if residual <= tolerance else "no")
        for i, (value, residual) in enumerate(zip(eigenvalues, residuals, strict=True), 1)
    ]
    head = ("spike", "eigenvalue", "relative residual", "converged")
    note = (
        f'<p class="note">To a relative residual of {tolerance:g}, {text(said)}; '
        "crosses and hollow marks are those that have not.</p>"
    )
    body = (
        side_by_side(*drawn) + note + folded("Spikes as a table", table(head, rows, "Spikes and residuals", "numbers"))
    )
    return [Section("spectrum", "Spectrum: spikes and residuals", body)]
