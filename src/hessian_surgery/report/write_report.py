"""Write `report.html` again, from a folder that operate, compare or diagnose has written."""

from pathlib import Path
from typing import Any

from hessian_surgery.errors import InputError
from hessian_surgery.files import read_json, write_text
from hessian_surgery.report.comparison_page import comparison_page
from hessian_surgery.report.diagnosis_page import diagnosis_page
from hessian_surgery.report.run import load_run
from hessian_surgery.report.run_page import run_page
from hessian_surgery.version import SCHEMA_VERSION

PAGE = "report.html"


def write_report(folder: str | Path, comparison: str | Path | None = None) -> Path:
    """Write `report.html` into a folder of `operate`, `compare` or `diagnose`; returns its path.

    Args:
        folder: written by one of the three.
        comparison: folder of a comparison of the same model. The page of an operation then shows
            its front.

    Example:
        >>> outcome.save("run")
        >>> hs.write_report("run").name
        'report.html'
    """
    folder = Path(folder)
    if comparison is None and (folder / "compare.json").exists():
        page = comparison_page(_read(folder, "compare.json", "run", "compare"))
    elif comparison is None and (folder / "diagnosis.json").exists():
        page = diagnosis_page(_read(folder, "diagnosis.json", "run", "diagnose"))
    else:
        run = load_run(folder)
        fronts = _read(Path(comparison), "compare.json", "comparison", "compare") if comparison else None
        if fronts is not None and tuple(fronts["classes"]) != run.classes:
            raise InputError(
                f"comparison: {comparison} has other classes than {folder}; give a comparison of the same model"
            )
        page = run_page(run, fronts)
    write_text(folder / PAGE, page)
    return folder / PAGE


def _read(folder: Path, filename: str, argument: str, command: str) -> dict[str, Any]:
    """Read a JSON file; refuse one that another version's `command` wrote."""
    content = read_json(folder / filename, argument)
    version = content.get("schema_version", 1)
    if version != SCHEMA_VERSION:
        age = "an earlier" if version == 1 else "another"
        raise InputError(f"{argument}: {folder} was written by {age} version (schema {version}); {command} again")
    return content
