"""Files that are either whole or not there, and folders that one process writes at a time."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from hessian_surgery.errors import InputError

LOCK = ".lock"


@contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder; what is written there replaces `path` when the block ends well."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield beside
        beside.chmod(0o666 & ~_umask())  # safetensors makes files that only their owner can read
        os.replace(beside, path)
    except (OSError, SafetensorError, RuntimeError) as error:  # torch.save reports a full disk as a RuntimeError
        if isinstance(error, RuntimeError) and not beside.exists():
            raise
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise InputError(f"out: {path} cannot be written: {reason}") from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: Path, text: str) -> None:
    """Write a whole text file."""
    with written_beside(path) as beside:
        beside.write_text(text, encoding="utf-8")


def append_text(path: Path, text: str, afresh: bool = False) -> None:
    """Add to a text file, or begin it afresh."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if afresh else "a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"out: {path} cannot be written: {error.strerror}") from error


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file for people and programs: indented, with non-ASCII letters as they are."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path, argument: str) -> dict[str, Any]:
    """The object that a JSON file holds."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{argument}: {path} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{argument}: {path} holds no JSON object")
    return content


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold a folder for this process; a second process is refused. A killed process's claim ends with it.

    What a killed process had half written there is removed.
    """
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("w")
    except OSError as error:
        raise InputError(f"out: {folder} cannot be written: {error.strerror}") from error
    try:
        with lock:
            _lock(lock, folder)
            for leftover in folder.glob(".*.tmp"):
                leftover.unlink()
            try:
                yield
            finally:
                (folder / LOCK).unlink(missing_ok=True)
    finally:
        if made and not any(folder.iterdir()):
            folder.rmdir()


def _lock(lock: Any, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another process may have finished, and removed the file, between our opening and our locking it.
        held = (folder / LOCK).exists() and os.fstat(lock.fileno()).st_ino == (folder / LOCK).stat().st_ino
    except OSError:
        held = False
    if not held:
        raise InputError(f"out: another process is writing {folder}; wait for it, or give another folder")
