"""Check output folders: no file of a user is overwritten."""

from pathlib import Path

from hessian_surgery.errors import InputError
from hessian_surgery.files import LOCK

# The file that marks a demo's folder: only such a folder may be replaced.
DEMO_MARK = "demo.txt"


def check_run_folder(folder: Path, resume: bool) -> None:
    """Refuse a folder that holds anything but an unfinished run to resume."""
    if (folder / "result.json").exists():
        raise InputError(f"out: {folder} holds a finished run; give another folder, or move that one away")
    if (folder / "history.jsonl").exists() and not resume:
        raise InputError(f"out: {folder} holds an unfinished run; give --resume to continue it, or another folder")
    if not (folder / "history.jsonl").exists():
        check_empty(folder)


def check_demo_folder(folder: Path) -> None:
    """Refuse a folder that holds anything but an earlier demo."""
    if _contents(folder) and not (folder / DEMO_MARK).exists():
        raise InputError(f"out: {folder} holds something other than a demo; give an empty or new folder")


def check_comparison_folder(folder: Path) -> None:
    """Refuse a folder that holds anything but the trainings of an unfinished comparison."""
    if (folder / "compare.json").exists():
        raise InputError(f"out: {folder} holds a finished comparison; give another folder, or move that one away")
    _refuse_others(folder, [name for name in _contents(folder) if not name.startswith("training-")])


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
    return sorted(p.name for p in folder.iterdir() if p.name != LOCK and not (p.name[0] == "." and p.suffix == ".tmp"))
