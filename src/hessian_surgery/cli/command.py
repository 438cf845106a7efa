"""Turn dataclasses into commands: each field is an option, and a command takes one object.

A command's function is imported when it is called, so that `--help` needs no torch.
"""

import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand

from hessian_surgery.cli.groups import GROUPS
from hessian_surgery.cli.option_names import as_options
from hessian_surgery.errors import InputError
from hessian_surgery.ranks import launched, present


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


def add_command(app: typer.Typer, name: str, kind: type, place: str, text: str, shared: bool = False) -> None:
    """Register a command.

    Args:
        app: the group that the command belongs to.
        name: the command's name.
        kind: a dataclass of options; its fields have annotated types.
        place: `module:function` in this room; the function takes an object of `kind`.
        text: the help text.
        shared: whether the ranks of a `torchrun` share its work; otherwise the first does it alone.
    """

    def call(**given: Any) -> None:
        if not shared and not present().writes:
            return
        module, _, function = place.partition(":")
        with _loading():
            run = getattr(importlib.import_module(f"hessian_surgery.cli.{module}"), function)
        try:
            with _joined() if shared else nullcontext():
                run(kind(**given))
        except InputError as error:
            raise InputError(as_options(str(error), kind)) from error
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
