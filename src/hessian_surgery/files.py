"""Files that are complete or absent, and folders that only one process writes at a time."""

import fcntl
import glob
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from hessian_surgery.distributed import together, wait_for_all
from hessian_surgery.errors import FileError, InUse
from hessian_surgery.plain_text import in_json, reason
from hessian_surgery.ranks import present

# Names that nobody else gives to a file: a lock, files that are half written, and the lock of a
# file that is being made.
LOCK = ".hessian-surgery.lock"
HALF_WRITTEN = re.compile(r"\..+\.(\d+)\.hessian-surgery")
MAKING = ".making.hessian-surgery"


@contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; the file written there replaces `path` on success.

    Only the first rank writes: what others write is dropped. None goes on before the file is there,
    or overtakes it: so all ranks find the same files at each place of the program.
    """
    wait_for_all()
    with together():
        if not present().writes:
            # Not the null device: who writes a file beside it and renames would replace the device.
            with tempfile.TemporaryDirectory() as dropped:
                yield Path(dropped) / path.name
            return
        if path.exists() and not path.is_file():
            raise FileError(f"out: {path} is no file that can be replaced; give another name")
        beside = path.with_name(f".{path.name}.{os.getpid()}.hessian-surgery")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_half_written(path)
            yield beside
            beside.chmod(0o666 & ~_umask())  # safetensors lets only the owner read its files
            os.replace(beside, path)
        except (OSError, SafetensorError, RuntimeError) as error:
            # torch.save raises a RuntimeError if the disk is full.
            if isinstance(error, RuntimeError) and not beside.exists():
                raise
            raise FileError(f"out: {path} cannot be written: {reason(error)}") from error
        finally:
            with suppress(OSError):
                beside.unlink(missing_ok=True)


def _remove_half_written(path: Path) -> None:
    """Remove what processes that were killed left of their attempts to write this file."""
    for other in path.parent.glob(f".{glob.escape(path.name)}.*.hessian-surgery"):
        found = HALF_WRITTEN.fullmatch(other.name)
        # In a container, the id of a killed process may come back as our own.
        if found and (int(found[1]) == os.getpid() or not _alive(int(found[1]))):
            with suppress(OSError):
                _remove(other)


def _remove(path: Path) -> None:
    """Remove a file, or a folder with all that it holds."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    """Whether there is such a process on this machine."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def folder_written_beside(folder: Path) -> Iterator[Path]:
    """Give a temporary folder beside `folder`; on success it replaces `folder`.

    Only the first rank writes it; see `written_beside`.
    """
    wait_for_all()
    with together():
        if not present().writes:
            with tempfile.TemporaryDirectory() as dropped:
                yield Path(dropped)
            return
        beside = folder.with_name(f".{folder.name}.{os.getpid()}.hessian-surgery")
        try:
            _remove_half_written(folder)
            beside.mkdir(parents=True)
            yield beside
            if folder.is_dir():
                shutil.rmtree(folder)
            os.replace(beside, folder)
        except OSError as error:
            raise FileError(f"out: {folder} cannot be written: {error.strerror or error}") from error
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: Path, text: str) -> None:
    """Write a text file, all or nothing."""
    with written_beside(path) as beside:
        beside.write_text(text, encoding="utf-8")


def append_text(path: Path, text: str, overwrite: bool = False) -> None:
    """Add to a text file; `overwrite` discards what it held. Only the first rank writes."""
    wait_for_all()
    with together():
        try:
            if present().writes:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("w" if overwrite else "a", encoding="utf-8") as file:
                    file.write(text)
        except OSError as error:
            raise FileError(f"out: {path} cannot be written: {error.strerror}") from error


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file, indented, with non-ASCII letters as they are."""
    write_text(path, in_json(json.dumps(content, indent=1, ensure_ascii=False)) + "\n")


@contextmanager
def claimed(folder: Path, check: Callable[[], None] | None = None) -> Iterator[None]:
    """Reserve a folder for this process, and refuse a second one; a killed process loses its claim.

    Files that a killed process left half written are removed, also from folders below. The first
    rank claims it for all.

    Args:
        folder: made if it does not exist.
        check: refuses the folder by an error; it is called when no other process can write there.
    """
    wait_for_all()
    with ExitStack() as held:
        with together():
            if present().writes:
                held.enter_context(_claimed(folder, check))
        yield


@contextmanager
def _claimed(folder: Path, check: Callable[[], None] | None) -> Iterator[None]:
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        with _lock(folder / LOCK, folder):
            if check is not None:
                check()
            for place, folders, names in os.walk(folder):
                for name in filter(_left_by_killed, (*folders, *names)):
                    _remove(Path(place, name))
            yield
    finally:
        _remove_empty(made)


def _left_by_killed(name: str) -> bool:
    """Whether this is the name of what a process that was killed has left."""
    return name.endswith(MAKING) or HALF_WRITTEN.fullmatch(name) is not None


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders, innermost first, up to one that holds something."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


@contextmanager
def making(path: Path) -> Iterator[bool]:
    """Whether a file is missing; if so, no other process makes it while this block does.

    Of ranks, the first keeps the others away for all.

    Raises:
        InUse: another process is making it.
    """
    if path.exists():
        yield False
        return
    with ExitStack() as held:
        with together():
            if present().writes:
                held.enter_context(_lock(path.with_name(f".{path.name}{MAKING}"), path))
        yield not path.exists()


@contextmanager
def _lock(lock: Path, place: Path) -> Iterator[None]:
    """Hold a lock file, which guards a place."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        opened = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise FileError(f"out: {place} cannot be written: {error.strerror}") from error
    try:
        if not _is_ours(opened, lock):
            raise InUse(f"out: another process is writing {place}; wait for it, or give another folder")
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
    finally:
        os.close(opened)


def _is_ours(opened: int, lock: Path) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another process may have removed the file after we opened it and before we locked it.
        return os.fstat(opened).st_ino == lock.stat().st_ino
    except OSError:
        return False
