"""Output: results go to stdout, and everything else to stderr, so results can be piped."""

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console

from hessian_surgery.ranks import present

# How wide tables are in a file or a pipe, where names need not be cut.
FILE_WIDTH = 120


def results() -> Console:
    """Return the console for results: stdout. Of several ranks, only the first prints."""
    return Console(
        quiet=not present().writes, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else FILE_WIDTH
    )


def print_json(content: dict[str, Any]) -> None:
    """Print one JSON object on stdout."""
    print_text(json.dumps(content, ensure_ascii=False))


def print_text(text: str) -> None:
    """Print a text on stdout; of several ranks, only the first does."""
    if present().writes:
        print(text)


def notes() -> Console:
    """Return the console for progress and remarks: stderr."""
    return Console(stderr=True, quiet=not present().writes)


def print_notes(lines: Iterable[str]) -> None:
    """Print lines on stderr as they are, without markup."""
    for line in lines:
        notes().print(line, highlight=False, markup=False, soft_wrap=True)
