"""Find one of many classes by its name: the box, and the figures that the page's script shows."""

from collections.abc import Sequence
from typing import Any

from hessian_surgery.evidence.metrics import Metrics
from hessian_surgery.evidence.paired_tests import ClassTest
from hessian_surgery.markup import embedded, text
from hessian_surgery.plain_text import one_line

# The page's script gets fractions in whole parts of this: finer than a pixel.
SCALE = 10_000


def search_box(place: str, label: str) -> str:
    """A labelled box to type a name into, and a line that says how many classes match."""
    return (
        f'<div class="find"><label for="{place}">{text(label)}</label>'
        f'<input type="search" id="{place}" autocomplete="off" spellcheck="false" aria-describedby="{place}-said">'
        f'<p class="note" id="{place}-said" role="status"></p></div>'
        "<noscript><p>The search needs scripts.</p></noscript>"
    )


def class_data(
    classes: Sequence[str],
    shown: Metrics,
    floor: float,
    before: Metrics | None = None,
    tests: Sequence[ClassTest] = (),
) -> str:
    """Embed every class: names, images, accuracies with intervals, p-values.

    Args:
        classes: class names.
        shown: figures of the model that is shown.
        floor: where the scale of accuracies begins.
        before: figures of the starting model, if the page compares the two.
        tests: of each class, if so; a class with too few images has no p-value.
    """
    held: dict[str, Any] = {
        "names": [one_line(name) for name in classes],
        "floor": floor,
        "count": shown.count,
        "after": _triples(shown),
    }
    if before is not None:
        held["before"] = _triples(before)
        held["p"] = [float(f"{test.p_holm:.1g}") if test.claim else None for test in tests]
    return embedded(held, "class-data")


def whole_parts(fractions: Sequence[float]) -> list[int]:
    """Fractions in parts of `SCALE`."""
    return [round(SCALE * value) for value in fractions]


def _triples(metrics: Metrics) -> list[list[int]]:
    """Low ends, accuracies and high ends of all classes."""
    lows, highs = zip(*metrics.interval, strict=True)
    return [whole_parts(values) for values in (lows, metrics.per_class, highs)]
