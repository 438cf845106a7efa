"""Results go to stdout and everything else to stderr, so that a result can be piped on."""

import json
from collections.abc import Iterable
from typing import Any

from rich.console import Console


def print_json(content: dict[str, Any]) -> None:
    """One JSON object on stdout."""
    print(json.dumps(content, ensure_ascii=False))


def notes() -> Console:
    """Where progress and remarks go: stderr."""
    return Console(stderr=True)


def print_notes(lines: Iterable[str]) -> None:
    """Remarks as they are, without markup."""
    for line in lines:
        notes().print(line, highlight=False, markup=False, soft_wrap=True)
