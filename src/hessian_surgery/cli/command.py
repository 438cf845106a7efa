"""Turn dataclasses into commands: each field is an option, and a command takes one object.

A command's function is imported when it is called, so that `--help` needs no torch.
"""

import importlib
import inspect
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

import typer


def add_command(app: typer.Typer, name: str, kind: type, place: str, text: str) -> None:
    """Register a command.

    Args:
        app: the group that the command belongs to.
        name: the command's name.
        kind: a dataclass of options; its fields have annotated types.
        place: `module:function` in this room; the function takes an object of `kind`.
        text: the help text.
    """

    def call(**given: Any) -> None:
        module, _, function = place.partition(":")
        getattr(importlib.import_module(f"hessian_surgery.cli.{module}"), function)(kind(**given))

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
    app.command(name, help=text)(call)
