"""Turn dataclasses into commands: each field is an option, and a command takes one object.

A command's function is imported when it is called, so that `--help` needs no torch.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand

from hessian_surgery.cli.groups import GROUPS
from hessian_surgery.cli.option_names import as_options
from hessian_surgery.cli.output import print_notes
from hessian_surgery.errors import InputError
from hessian_surgery.plain_text import HIDDEN
from hessian_surgery.ranks import launched, present

# Bytes of a name in a path that is read, and in one that is written, beside which files with longer
# names are made; and of a whole path.
READ, WRITTEN, WHOLE = 255, 200, 3500
# The exit code that shells expect of a program that Ctrl-C has ended.
INTERRUPTED = 130


class GroupedCommand(TyperCommand):
    """A command whose help shows options under headings, in plain text."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then each group of options, then the others."""
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", *GROUPS, "Help")}
        for own in self.get_params(ctx):
            kind = "Arguments" if own.param_type_name == "argument" else "Help"
            record = own.get_help_record(ctx)
            if record is not None:
                groups[getattr(own, "rich_help_panel", None) or kind].append(record)
        for name, records in groups.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


@contextmanager
def _loading() -> Iterator[None]:
    """Say on a terminal that libraries are loaded, which takes seconds on a busy machine."""
    shown = sys.stderr.isatty() and present().writes
    if shown:
        print("loading", end="\r", file=sys.stderr, flush=True)
    yield
    if shown:
        print(" " * len("loading"), end="\r", file=sys.stderr, flush=True)


def _joined() -> AbstractContextManager[object]:
    """A block whose work the ranks share, if `torchrun` has started any."""
    if launched() is None:
        return nullcontext()
    joined: AbstractContextManager[object] = importlib.import_module("hessian_surgery.distributed").joined_ranks()
    return joined


def check_arguments(words: Sequence[str]) -> None:
    """Refuse what no file or class is called, before it is repeated in any message."""
    for number, word in enumerate(words, start=1):
        found = HIDDEN.search(word)
        if found:
            raise InputError(
                f"argument {number}: {word!r} holds {found.group()!a}, a control character or a byte that is no "
                "UTF-8; rename what it names"
            )


def check_path(value: object, option: str) -> None:
    """Refuse a path that the system would refuse, for its length, after hours of work."""
    if isinstance(value, Path):
        longest = WRITTEN if option in ("out", "figures") else READ
        name = max(value.parts, key=lambda part: len(os.fsencode(part)), default="")
        if len(os.fsencode(name)) > longest or len(os.fsencode(value)) > WHOLE:
            raise InputError(f"{option}: {value} is too long; give names of at most {longest} bytes, {WHOLE} in all")


def add_command(app: typer.Typer, name: str, kind: type, place: str, text: str, shared: bool = False) -> None:
    """Register a command.

    Args:
        app: the group that the command belongs to.
        name: the command's name.
        kind: a dataclass of options; its fields have annotated types.
        place: `module:function` in this room; it takes a `kind`, and may return an exit code.
        text: the help text.
        shared: whether the ranks of a `torchrun` share its work; otherwise the first does it alone.
    """

    def call(**given: Any) -> int:
        if not shared and not present().writes:
            return 0
        module, _, function = place.partition(":")
        try:
            for option, value in given.items():
                for path in value if isinstance(value, list) else [value]:
                    check_path(path, option)
            with _loading():
                run = getattr(importlib.import_module(f"hessian_surgery.cli.{module}"), function)
            with _joined() if shared else nullcontext():
                return run(kind(**given)) or 0
        except InputError as error:
            raise InputError(as_options(str(error), kind)) from error
        except KeyboardInterrupt as stop:
            # A command that can be continued says so.
            print_notes([str(stop) or "interrupted"])
            raise typer.Exit(INTERRUPTED) from stop
        except RuntimeError as error:
            if type(error).__name__ != "OutOfMemoryError":  # torch's, which is not imported here
                raise
            smaller = "a smaller --batch-size, or " if "batch_size" in given else ""
            reason = str(error).partition("\n")[0][:200]
            raise InputError(f"--device: its memory is full; give {smaller}another device: {reason}") from error

    hints = get_type_hints(kind, include_extras=True)
    parameters = [
        inspect.Parameter(
            own.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if own.default is MISSING else own.default,
            annotation=hints[own.name],
        )
        for own in fields(kind)
    ]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {own.name: own.annotation for own in parameters}
    app.command(name, cls=GroupedCommand, help=text, short_help=text)(call)
