"""JSON files that carry a hash of what they hold, so that damage is told from results."""

import hashlib
import json
from pathlib import Path
from typing import Any, TypedDict

from hessian_surgery.errors import FileError
from hessian_surgery.files import write_json
from hessian_surgery.stored import read_json


class Sealed(TypedDict):
    """What such a file holds."""

    sha256: str
    content: dict[str, Any]


def write_sealed(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file that `read_sealed` reads."""
    write_json(path, {"sha256": _hash(content), "content": content})


def read_sealed(path: Path, argument: str) -> dict[str, Any]:
    """Read what `write_sealed` wrote.

    Args:
        path: the file.
        argument: where the path was given, for the message.

    Raises:
        FileError: it is damaged.
    """
    found = read_json(path, argument, Sealed)
    if _hash(found["content"]) != found["sha256"]:
        raise FileError(f"{argument}: {path} is damaged: its hash is another; remove it to have it made again")
    content: dict[str, Any] = found["content"]
    return content


def _hash(content: dict[str, Any]) -> str:
    """The hash of what JSON keeps of some contents, times aside: these differ from run to run."""
    return hashlib.sha256(json.dumps(_timeless(json.loads(json.dumps(content))), sort_keys=True).encode()).hexdigest()


def _timeless(value: Any) -> Any:
    """The same without any `seconds`."""
    if isinstance(value, dict):
        return {key: _timeless(own) for key, own in value.items() if key != "seconds"}
    return [_timeless(own) for own in value] if isinstance(value, list) else value
