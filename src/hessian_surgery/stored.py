"""Read back what this program wrote: every such file is checked before it is believed."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from hessian_surgery.errors import FileError, InputError, RankLost
from hessian_surgery.plain_text import reason
from hessian_surgery.type_check import fault
from hessian_surgery.version import SCHEMA_VERSION

# Bytes of a text file at most: JSON of nothing but brackets takes 25 times as much memory.
LARGEST = 40_000_000
# What damaged contents raise where they are used.
FAULTS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SafetensorError,
    TypeError,
    ValueError,
)


def read_json(path: Path, argument: str, shape: Any = dict[str, Any]) -> dict[str, Any]:
    """Read a JSON file of ours.

    Args:
        path: the file.
        argument: where the path was given, for the message.
        shape: what it must hold: a type hint, such as a TypedDict.

    Raises:
        FileError: it is no JSON, too large, or does not hold what it must.
    """
    return parse_json(read_small(path, argument), f"{argument}: {path}", shape)


def read_small(path: Path, argument: str, kind: str = "JSON") -> str:
    """Read a text file that is not larger than any of ours."""
    try:
        if path.stat().st_size > LARGEST:
            raise FileError(f"{argument}: {path} has more than {LARGEST:,} bytes; no file of this kind has")
        return path.read_text(encoding="utf-8")
    except UnicodeError as error:
        raise FileError(f"{argument}: {path} cannot be read as {kind}: it is not UTF-8") from error
    except OSError as error:
        raise FileError(f"{argument}: {path} cannot be read as {kind}: {reason(error)}") from error


def parse_json(text: str, what: str, shape: Any = dict[str, Any]) -> dict[str, Any]:
    """Parse and check JSON; `what` begins the message."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else reason(error)
        raise FileError(f"{what} cannot be read as JSON: {why}") from error
    if not isinstance(content, dict):
        raise FileError(f"{what} does not hold a JSON object")
    return checked(content, what, shape)


def read_versioned(path: Path, argument: str, shape: Any, command: str) -> dict[str, Any]:
    """Read a JSON file; refuse one that another version's `command` wrote."""
    content: dict[str, Any] = read_json(path, argument)
    version = content.get("schema_version", 1)
    if version != SCHEMA_VERSION:
        age = "an earlier" if version == 1 else "another"
        said = version if isinstance(version, int) else "unknown"
        raise FileError(f"{argument}: {path.parent} was written by {age} version (schema {said}); {command} again")
    return checked(content, f"{argument}: {path}", shape)


def checked(content: dict[str, Any], what: str, shape: Any) -> dict[str, Any]:
    """The same contents, if they have this shape; `what` begins the message."""
    wrong = fault(content, shape)
    if wrong is not None:
        raise FileError(f"{what} is damaged: {wrong}")
    return content


@contextmanager
def blamed_on(what: str) -> Iterator[None]:
    """Blame errors on a file, around code that works on nothing but the contents of the file.

    Types are checked when a file is read. What is left are contents that do not fit together.
    """
    try:
        yield
    except (InputError, RankLost):
        raise
    except FAULTS as error:
        raise FileError(f"{what} is damaged or incomplete: {reason(error)}") from error
