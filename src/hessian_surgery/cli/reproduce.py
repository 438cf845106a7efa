"""`hessian-surgery reproduce NAME`: the paper's tables and figures, beside the paper's numbers."""

import shlex
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from hessian_surgery.cli.folders import check_empty
from hessian_surgery.cli.inputs import choose_device
from hessian_surgery.cli.output import notes, print_json, print_notes, results
from hessian_surgery.cli.reproduce_options import ReproduceOptions
from hessian_surgery.errors import InputError
from hessian_surgery.files import claimed, write_text
from hessian_surgery.operation.progress import ShownProgress
from hessian_surgery.ranks import present
from hessian_surgery.reproduce.catalogue import CATALOGUE, choose_items
from hessian_surgery.reproduce.item import Item
from hessian_surgery.reproduce.jobs import Reproduction
from hessian_surgery.reproduce.page import overview, row_cells
from hessian_surgery.reproduce.run import run_items
from hessian_surgery.reproduce.starts import QUICK, Start, find_start
from hessian_surgery.sealed import read_sealed, write_sealed

# The file that says what a folder's results are about.
INPUTS = "inputs.json"


def reproduce(options: ReproduceOptions) -> None:
    """Make tables and figures of the paper again."""
    if options.listed:
        show_list(options.as_json)
        return
    if not options.names:
        raise InputError("names: missing; give all or some names, or --list to see them")
    if options.processes > 1 and present().joined:
        raise InputError("processes: torchrun has started several already; give 1, or leave torchrun out")
    items = choose_items(options.names)
    asked = Reproduction(
        find_starts(items, options),
        choose_device(options.device),
        options.out,
        options.splits,
        options.quick,
        given_command(options),
        options.processes,
    )
    with claimed(options.out, partial(check_inputs, asked)):
        write_inputs(asked)
        try:
            with ShownProgress(notes()) as observer:
                contents = run_items(items, asked, observer)
        except KeyboardInterrupt as stop:
            stop.args = ("interrupted; the same command goes on with what is left",)
            raise
        write_text(options.out / "README.md", overview(contents))
    if options.as_json:
        print_json({"items": [{key: own for key, own in found.items() if key != "measured"} for found in contents]})
    else:
        for found in contents:
            print_item(found)
    print_notes([f"JSON, pages and figures: {options.out}"])


def show_list(as_json: bool) -> None:
    """Show every item with its place in the paper."""
    if as_json:
        print_json({"items": [{"name": name, **entry._asdict()} for name, entry in CATALOGUE.items()]})
        return
    table = Table("name", "in the paper", "what it shows", box=None, pad_edge=False)
    for name, entry in CATALOGUE.items():
        table.add_row(name, entry.paper, entry.title)
    results().print(table)


def find_starts(items: list[Item], options: ReproduceOptions) -> dict[str, Start]:
    """Where the data and the network of each data set are."""
    names = list(dict.fromkeys(name for item in items for name in item.datasets))
    if options.quick:
        given = [name for name in ("sources", "data", "checkpoint") if getattr(options, name) is not None]
        if given:
            raise InputError(f"{given[0]}: a quick run is about digits; leave out one of the two")
        return dict.fromkeys(names, QUICK)
    if len(names) > 1 and (options.data or options.checkpoint):
        raise InputError(f"data: these items are on {', '.join(names)}; give --sources instead, or run one set's items")
    return {name: find_start(name, options.sources, options.data, options.checkpoint, options.model) for name in names}


def given_command(options: ReproduceOptions) -> str:
    """The command, as the user may give it again; folders of this machine are left out."""
    words = ["hessian-surgery", "reproduce", *(options.names or [])]
    words += ["--quick"] if options.quick else ["--sources", "DIR"] if options.sources else ["--data", "SOURCE"]
    words += [] if options.splits is None else ["--splits", str(options.splits)]
    words += [] if options.processes == 1 else ["--processes", str(options.processes)]
    return shlex.join(words)


def check_inputs(asked: Reproduction) -> None:
    """Refuse a folder that holds something else, or results from other inputs."""
    path = asked.folder / INPUTS
    if not path.exists():
        check_empty(asked.folder)
        return
    known = read_sealed(path, "out")
    for name, own in _inputs(asked).items():
        if known.get(name, own) != own:
            raise InputError(f"out: {asked.folder} holds results from other inputs ({name}); give another folder")


def write_inputs(asked: Reproduction) -> None:
    """Say in a folder what its results are about, beside what is said there."""
    path = asked.folder / INPUTS
    known = read_sealed(path, "out") if path.exists() else {}
    write_sealed(path, known | _inputs(asked))


def _inputs(asked: Reproduction) -> dict[str, list[str]]:
    given = {name: [start.data, start.model, _text(start.checkpoint)] for name, start in asked.starts.items()}
    return given | {"quick": [str(asked.quick)]}


def print_item(content: dict[str, Any]) -> None:
    """Print the rows of one item."""
    table = Table(title=f"{content['paper']}: {content['title']}", title_justify="left")
    for name in ("", "the paper", "ours", "verdict"):
        table.add_column(name, justify="left" if name in ("", "verdict") else "right")
    for row in content["rows"]:
        table.add_row(*row_cells(row), row["verdict"])
    results().print(table)


def _text(path: Path | None) -> str:
    return "" if path is None else str(path)
