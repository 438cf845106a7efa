"""The section about how each class responds to each direction."""

from hessian_surgery.evidence.deciles import MANY_CLASSES
from hessian_surgery.markup import folded, minus, name, scrolled, table
from hessian_surgery.report import page_charts
from hessian_surgery.report.figure_data import Responses, leading_responses
from hessian_surgery.report.page import Section

# With more classes than this, the table lists only the strongest directions of each class.
WHOLE_TABLE = 24
STRONGEST = ("strongest direction", "second", "third")
# How the labels of biases begin (`directions/biases.py`).
BIAS = "bias of "
UNITS = {
    "length": "the step's length in weight space",
    "coefficient": "the direction's coefficient (a coefficient of 1 moves the logits by the median margin)",
}


TITLE = "Which direction moves which class"


def responses_section(responses: Responses, only_biases: bool = False) -> Section:
    """Show responses as a heat map, and as a table; of many classes, those that respond most.

    Args:
        responses: of the first iteration.
        only_biases: whether the step used the head's biases alone; then no other row is shown.
    """
    unused = ""
    if only_biases:
        unused = "<p>The step moved only the head's biases. The other directions were not used and are not shown.</p>"
        responses = _of_biases(responses)
    if not responses.directions:
        why = f"<p>With more than {MANY_CLASSES} classes, biases are not shown: each moves its own class.</p>"
        return Section("responses", TITLE, unused or why)
    responses = leading_responses(responses)
    heat_map = scrolled(page_charts.heat_map(responses), "Responses of classes to directions")
    words = (
        "<p>How the accuracy of each class responds to a step along each direction, in percentage points per 0.01 of "
        f'{UNITS[responses.unit]}. <span class="swatch up">+</span> rises, '
        f'<span class="swatch down">−</span> falls.{_left_out(responses)}</p>'
    )
    many = len(responses.classes) > WHOLE_TABLE
    figures = _strongest(responses) if many else _every_figure(responses)
    return Section("responses", TITLE, unused + words + heat_map + figures)


def _of_biases(responses: Responses) -> Responses:
    """The rows of biases; none if they were not kept."""
    rows = [i for i, title in enumerate(responses.directions) if title.startswith(BIAS)]
    kept = ([responses.directions[i] for i in rows], responses.classes, [responses.values[i] for i in rows])
    return Responses(*kept, responses.unit)


def _left_out(responses: Responses) -> str:
    """Say of how many classes and directions this is the leading part."""
    parts = []
    if responses.of_classes:
        parts.append(f"the {len(responses.classes)} of {responses.of_classes:,} classes that respond most")
    if responses.of_directions:
        parts.append(
            f"{len(responses.directions)} of {responses.of_directions:,} directions (no biases: each moves its own "
            "class and little else)"
        )
    return f" Shown are {' and '.join(parts)}." if parts else ""


def _every_figure(responses: Responses) -> str:
    rows = [(name(title), *map(_shown, row)) for title, row in zip(responses.directions, responses.values, strict=True)]
    head = ("direction", *map(name, responses.classes))
    return folded("All responses as a table", table(head, rows, "Response of each class to each direction", "numbers"))


def _strongest(responses: Responses) -> str:
    """For each class, the directions that it responds to most."""
    titles = responses.directions
    values = responses.values
    rows = []
    for j, title in enumerate(responses.classes):
        ranked = sorted(range(len(titles)), key=lambda i: -abs(values[i][j]))[: len(STRONGEST)]
        rows.append((name(title), *(f"{name(titles[i])} {_shown(values[i][j])}" for i in ranked)))
    caption = f"The strongest directions of {'these classes' if responses.of_classes else 'each class'}"
    return folded(caption, table(("class", *STRONGEST[: len(titles)]), rows, caption))


def _shown(value: float) -> str:
    return minus(f"{value:+.2f}")
