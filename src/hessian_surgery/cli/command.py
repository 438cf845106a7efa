"""Turn dataclasses into commands: each field is an option, and a command takes one object."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_type_hints

import typer

Options = TypeVar("Options")


def add_command(
    app: typer.Typer, kind: type[Options], name: str | None = None
) -> Callable[[Callable[[Options], None]], Callable[[Options], None]]:
    """Register a function of options as a command; its docstring is the help text.

    Args:
        app: the group that the command belongs to.
        kind: a dataclass of options; its fields have annotated types.
        name: the command's name; by default the function's name.
    """

    def register(function: Callable[[Options], None]) -> Callable[[Options], None]:
        def call(**given: Any) -> None:
            function(kind(**given))

        hints = get_type_hints(kind, include_extras=True)
        parameters = [
            inspect.Parameter(
                own.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if own.default is MISSING else own.default,
                annotation=hints[own.name],
            )
            for own in fields(kind)  # type: ignore[arg-type]
        ]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {own.name: own.annotation for own in parameters}
        call.__doc__ = function.__doc__
        app.command(name or function.__name__)(call)
        return function

    return register
