"""Pages of committed results: every number on them comes from the items' JSON files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hessian_surgery.files import write_text
from hessian_surgery.report.figure_style import save_figure
from hessian_surgery.reproduce.catalogue import CATALOGUE, load_item
from hessian_surgery.reproduce.page import claims_table, item_page, overview
from hessian_surgery.reproduce.run import TIME
from hessian_surgery.sealed import read_sealed
from hessian_surgery.stored import read_json

INDEX = """# Results beside the paper

Each page is made by `make results` from the JSON that one command wrote. An item without a page has
not been run at full size yet; `hessian-surgery reproduce --list` names all.

"""
CLAIMS = """# Which of the paper's claims held

Each line is a claim that can fail. The rule that judges it is on the item's page. What needs no
network is in [claims checked on paper](../explanation/checked-claims.md).

"""


def write_results(folder: Path) -> list[str]:
    """Write the pages and figures of all items whose JSON is in a folder.

    Rows are made again from what was measured: a change of a rule shows at once.

    Returns:
        The names of these items.
    """
    contents = [_write_item(folder, name) for name in CATALOGUE if (folder / f"{name}.json").exists()]
    write_text(folder / "index.md", INDEX + overview(contents) + "\n" + _time(folder) + _toctree(contents))
    write_text(folder / "claims.md", CLAIMS + claims_table(contents))
    return [content["item"] for content in contents]


def _write_item(folder: Path, name: str) -> dict[str, Any]:
    content = read_json(folder / f"{name}.json", "results")
    item = load_item(name)
    content["rows"] = [row.as_dict() for row in item.rows(content["measured"])]
    content |= CATALOGUE[name]._asdict()
    if item.draw is not None:
        save_figure(item.draw(content["measured"]), folder / f"{name}.svg")
    write_text(folder / f"{name}.md", item_page(content, figure=item.draw is not None))
    return content


def _time(folder: Path) -> str:
    """How long the commands took that filled the folder, and where."""
    path = folder / TIME
    if not path.exists():
        return ""
    commands = read_sealed(path, "results")["commands"]
    minutes = sum(own["seconds"] for own in commands) / 60
    lines = [
        f"All of it took {minutes:.0f} minutes ([JSON]({TIME})):",
        "",
        "| command | on | minutes |",
        "|---|---|---|",
    ]
    lines += [f"| `{own['command']}` | {own['device']} | {own['seconds'] / 60:.1f} |" for own in commands]
    return "\n".join([*lines, "", ""])


def _toctree(contents: Sequence[dict[str, Any]]) -> str:
    """The list of pages that the documentation's builder needs."""
    names = ["claims", *(content["item"] for content in contents)]
    return "\n".join(["```{toctree}", ":hidden:", "", *names, "```", ""])
