"""Files that are complete or absent, and folders that only one process writes at a time."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from hessian_surgery.errors import InputError
from hessian_surgery.plain_text import in_json, reason

LOCK = ".lock"


@contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; the file written there replaces `path` on success."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield beside
        beside.chmod(0o666 & ~_umask())  # safetensors lets only the owner read its files
        os.replace(beside, path)
    except (OSError, SafetensorError, RuntimeError) as error:
        # torch.save raises a RuntimeError if the disk is full.
        if isinstance(error, RuntimeError) and not beside.exists():
            raise
        raise InputError(f"out: {path} cannot be written: {reason(error)}") from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: Path, text: str) -> None:
    """Write a text file, all or nothing."""
    with written_beside(path) as beside:
        beside.write_text(text, encoding="utf-8")


def append_text(path: Path, text: str, overwrite: bool = False) -> None:
    """Add to a text file; `overwrite` discards what it held."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if overwrite else "a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"out: {path} cannot be written: {error.strerror}") from error


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file, indented, with non-ASCII letters as they are."""
    write_text(path, in_json(json.dumps(content, indent=1, ensure_ascii=False)) + "\n")


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Reserve a folder for this process, and refuse a second one; a killed process loses its claim.

    Files that a killed process left half written are removed.
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
        # Another process may have removed the file after we opened it and before we locked it.
        held = (folder / LOCK).exists() and os.fstat(lock.fileno()).st_ino == (folder / LOCK).stat().st_ino
    except OSError:
        held = False
    if not held:
        raise InputError(f"out: another process is writing {folder}; wait for it, or give another folder")
