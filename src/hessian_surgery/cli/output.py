"""Output: results go to stdout, and everything else to stderr, so results can be piped."""

import json
from collections.abc import Iterable
from typing import Any

from rich.console import Console


def print_json(content: dict[str, Any]) -> None:
    """Print one JSON object on stdout."""
    print(json.dumps(content, ensure_ascii=False))


def notes() -> Console:
    """Return the console for progress and remarks: stderr."""
    return Console(stderr=True)


def print_notes(lines: Iterable[str]) -> None:
    """Print lines on stderr as they are, without markup."""
    for line in lines:
        notes().print(line, highlight=False, markup=False, soft_wrap=True)
