"""Files that are either whole or not there: written beside their place, then renamed into it."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder; what is written there replaces `path` when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield beside
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a whole text file."""
    with written_beside(path) as beside:
        beside.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file for people and programs: indented, with non-ASCII letters as they are."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
