"""Check output folders: no file of a user is overwritten."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hessian_surgery.errors import InputError
from hessian_surgery.files import HALF_WRITTEN, LOCK, claimed, write_text

# The file that marks a demo's folder: only such a folder may be replaced.
DEMO_MARK = "demo.txt"
# The file that says what is being written to a folder. It stays there if the command is killed.
UNFINISHED = "unfinished.txt"
# What `operate` does, in that file.
OPERATION = "operation"


def check_run_folder(folder: Path, resume: bool) -> None:
    """Refuse a folder that holds anything but an unfinished run to resume."""
    if (folder / "result.json").exists():
        raise InputError(f"out: {folder} holds a finished run; give another folder, or move that one away")
    held = [name for name in _contents(folder) if name != UNFINISHED]
    if "history.jsonl" not in held and _marked_for(folder) != OPERATION:
        check_empty(folder)
    elif held and not resume:
        raise InputError(f"out: {folder} holds an unfinished run; give --resume to continue it, or another folder")


def check_demo_folder(folder: Path) -> None:
    """Refuse a folder that holds anything but an earlier demo."""
    if _contents(folder) and not (folder / DEMO_MARK).exists():
        raise InputError(f"out: {folder} holds something other than a demo; give an empty or new folder")


@dataclass(frozen=True)
class Output:
    """What a command writes into a folder.

    Attributes:
        what: the work, such as "comparison".
        names: the files; the last one is there only if all are.
        alone: whether the folder may hold nothing else.
        kept: what the names of kept states start with, which may be there before.
    """

    what: str
    names: tuple[str, ...]
    alone: bool = True
    kept: str | tuple[str, ...] | None = None

    def check(self, folder: Path) -> None:
        """Refuse a folder with files that this command did not leave unfinished there."""
        if (folder / self.names[-1]).exists():
            raise InputError(f"out: {folder} holds a finished {self.what}; give another folder, or move that one away")
        known = _marked_for(folder)
        if known == self.what:
            return
        if known is not None:
            raise InputError(f"out: {folder} holds another command's unfinished work; finish that, or give another")
        strange = [name for name in _contents(folder) if self.alone or name in self.names]
        _refuse_others(folder, [name for name in strange if self.kept is None or not name.startswith(self.kept)])


@contextmanager
def writing(folder: Path, output: Output) -> Iterator[None]:
    """Reserve a folder for a command. If it ends early, the same command may go on there."""
    with claimed(folder, partial(output.check, folder)), marked(folder, output.what):
        yield


@contextmanager
def marked(folder: Path, what: str) -> Iterator[None]:
    """Mark a folder as unfinished; the mark stays if the work ends early and has left a file."""
    before = _contents(folder)
    write_text(folder / UNFINISHED, f"{what}\nThis {what} is not finished; give the same command again.\n")
    try:
        yield
    except BaseException:
        if UNFINISHED not in before and set(_contents(folder)) == {*before, UNFINISHED}:
            (folder / UNFINISHED).unlink(missing_ok=True)
        raise
    (folder / UNFINISHED).unlink(missing_ok=True)


def _marked_for(folder: Path) -> str | None:
    """What a command that was killed was doing in a folder; None if none was."""
    try:
        return (folder / UNFINISHED).read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    except OSError:
        return None


def check_empty(folder: Path) -> None:
    """Refuse a folder that holds anything."""
    _refuse_others(folder, _contents(folder))


def make_folder(folder: Path | None, argument: str) -> None:
    """Make a folder that is written to later; if that is impossible, say so now."""
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{argument}: {folder} cannot be made: {error.strerror}; give another folder") from error


def _refuse_others(folder: Path, names: list[str]) -> None:
    if names:
        raise InputError(f"out: {folder} holds other files, such as {names[0]}; give an empty or new folder")


def _contents(folder: Path) -> list[str]:
    """Return the names in a folder, except our own lock and half-written files."""
    if not folder.is_dir():
        return []
    return sorted(p.name for p in folder.iterdir() if p.name != LOCK and not HALF_WRITTEN.fullmatch(p.name))
