"""report.html: made again from a folder that operate, compare or diagnose has written."""

from pathlib import Path

from hessian_surgery.errors import InputError
from hessian_surgery.files import read_json, write_text
from hessian_surgery.report.comparison_page import comparison_page
from hessian_surgery.report.diagnosis_page import diagnosis_page
from hessian_surgery.report.run import load_run
from hessian_surgery.report.run_page import run_page

PAGE = "report.html"


def write_report(folder: str | Path, comparison: str | Path | None = None) -> Path:
    """Write `report.html` into a folder of `operate`, `compare` or `diagnose`; returns its path.

    Args:
        folder: what one of the three wrote.
        comparison: the folder of a comparison on the same model, whose front is then shown in an operation's page.
    """
    folder = Path(folder)
    if comparison is None and (folder / "compare.json").exists():
        page = comparison_page(read_json(folder / "compare.json", "run"))
    elif comparison is None and (folder / "diagnosis.json").exists():
        page = diagnosis_page(read_json(folder / "diagnosis.json", "run"))
    else:
        run = load_run(folder)
        fronts = read_json(Path(comparison) / "compare.json", "compare") if comparison else None
        if fronts is not None and tuple(fronts["classes"]) != run.classes:
            raise InputError(
                f"compare: the classes of {comparison} are not those of {folder}; give one of the same model"
            )
        page = run_page(run, fronts)
    write_text(folder / PAGE, page)
    return folder / PAGE
