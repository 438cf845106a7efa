"""The terminal: a console that names of classes, files and keys can only write letters to."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.segment import Segment

from hessian_surgery.plain_text import lines, one_line


class SafeConsole(Console):
    """A console that writes out control characters in whatever it prints; its colours stay."""

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        """Render something, its text made safe."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(lines(segment.text), segment.style)


def safe(text: object) -> str:
    """Text on one line that is not read as markup, for a line or a cell."""
    return escape(one_line(str(text)))
