"""A finished comparison as files: figures as JSON, a page, a table, predictions and logits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hessian_surgery.comparison.advice import advise
from hessian_surgery.comparison.figure import draw_fronts
from hessian_surgery.comparison.fronts import Fronts
from hessian_surgery.comparison.kept_splits import PREFIX, forget_splits
from hessian_surgery.comparison.tables import to_markdown
from hessian_surgery.errors import InputError
from hessian_surgery.files import write_json, write_text
from hessian_surgery.operation.environment import environment
from hessian_surgery.report.comparison_page import comparison_page
from hessian_surgery.report.figure_files import save_figures
from hessian_surgery.report.write_report import PAGE
from hessian_surgery.version import SCHEMA_VERSION
from hessian_surgery.weights.tensorfile import save_tensors

# It comes last: if it is there, all is.
LAST = "compare.json"
# What the names of the files start with that a comparison keeps while it runs.
KEPT = (PREFIX, "training-")


def save_comparison(fronts: Fronts, folder: str | Path) -> None:
    """Write what `compare --out` writes, but for a patch and seconds; `write_report` reads it.

    Args:
        fronts: the finished comparison.
        folder: made if it does not exist. It may be the one that the comparison was kept in.

    Example:
        >>> hs.save_comparison(fronts, "front")
        >>> hs.write_report("front").name
        'report.html'
    """
    folder = Path(folder)
    if (folder / LAST).exists():
        raise InputError(f"folder: {folder} holds a finished comparison; give another")
    folder.mkdir(parents=True, exist_ok=True)
    strange = [path.name for path in folder.iterdir() if not path.name.startswith(KEPT)]
    if strange:
        raise InputError(f"folder: {folder} holds {min(strange)}, which is of no comparison; give another")
    write_fronts(folder, fronts, fronts_content(fronts))


def fronts_content(fronts: Fronts, inputs: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The contents of `compare.json`: fractions, not percent; `inputs` are a command's options."""
    protocol = fronts.protocol
    return {
        "schema_version": SCHEMA_VERSION,
        **fronts.as_dict(),
        "seed": protocol.seed,
        "part": protocol.part,
        "budgets": list(protocol.budgets),
        "advice": vars(advise(fronts)),
        "inputs": dict(inputs or {}),
        "environment": environment(fronts.outputs.logits.device),
        "hashes": {f"{name} {fronts.noun}": part["sha256"] for name, part in fronts.data.items() if part["sha256"]},
    }


def write_fronts(folder: Path, fronts: Fronts, content: Mapping[str, Any]) -> None:
    """Write all files. Only then is it forgotten what a killed comparison would go on from."""
    save_figures(folder, {"front": draw_fronts(fronts)})
    write_text(folder / PAGE, comparison_page(dict(content)))
    write_text(folder / "compare.md", to_markdown(fronts))
    fronts.outputs.save_logits(folder / "logits.safetensors")
    save_tensors(folder / "predictions.safetensors", {**fronts.predicted, "labels": fronts.outputs.labels})
    write_json(folder / LAST, content)
    forget_splits(folder)
