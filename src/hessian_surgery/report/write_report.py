"""Write `report.html` again, from a folder that operate, compare or diagnose has written."""

from pathlib import Path

from hessian_surgery.errors import InputError
from hessian_surgery.files import write_text
from hessian_surgery.page_shapes import ComparePageShape, DiagnosisPageShape
from hessian_surgery.report.comparison_page import comparison_page
from hessian_surgery.report.diagnosis_page import diagnosis_page
from hessian_surgery.report.run import load_run
from hessian_surgery.report.run_page import run_page
from hessian_surgery.stored import blamed_on, read_versioned

PAGE = "report.html"


def write_report(folder: str | Path, comparison: str | Path | None = None) -> Path:
    """Write `report.html` into a folder of `operate`, `compare` or `diagnose`; returns its path.

    Args:
        folder: written by one of these commands, `Outcome.save` or `save_comparison`.
        comparison: folder of a comparison of the same model. The page of an operation then shows
            its front.

    Example:
        >>> outcome.save("run")
        >>> hs.write_report("run").name
        'report.html'
    """
    folder = Path(folder)
    with blamed_on(f"run: {folder}"):
        page = _page(folder, None if comparison is None else Path(comparison))
    write_text(folder / PAGE, page)
    return folder / PAGE


def _page(folder: Path, comparison: Path | None) -> str:
    """The page of what a folder holds."""
    if comparison is None and (folder / "compare.json").exists():
        return comparison_page(read_versioned(folder / "compare.json", "run", ComparePageShape, "compare"))
    if comparison is None and (folder / "diagnosis.json").exists():
        return diagnosis_page(read_versioned(folder / "diagnosis.json", "run", DiagnosisPageShape, "diagnose"))
    run = load_run(folder)
    fronts = None
    if comparison is not None:
        fronts = read_versioned(comparison / "compare.json", "comparison", ComparePageShape, "compare")
        if tuple(fronts["classes"]) != run.classes:
            raise InputError(
                f"comparison: {comparison} has other classes than {folder}; give a comparison of the same model"
            )
    return run_page(run, fronts)
