"""Options in groups: what help says about an option, and under which heading."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import typer

# The headings, everyday options first.
MODEL = "Model and data"
GOAL = "What to improve"
COMPARISON = "The comparison"
STUDY = "The study"
TRAINING = "The training"
OUTPUT = "Output"
OPERATION = "How to operate"
SPIKES = "Spikes"
LOOP = "The paper's loop"
MACHINE = "Machine and seed"
GROUPS = (MODEL, GOAL, COMPARISON, STUDY, TRAINING, OUTPUT, OPERATION, SPIKES, LOOP, MACHINE)


def option(
    group: str,
    text: str,
    metavar: str | None = None,
    *,
    name: str | None = None,
    default: str | None = None,
    choices: Sequence[str] = (),
    minimum: int | None = None,
) -> Any:
    """Describe an option.

    Args:
        group: its heading.
        text: what it is for.
        metavar: what stands for its value; by default the choices.
        name: by default the field's name.
        default: in words, if only the run decides it.
        choices: names to complete; the command's own code refuses others.
        minimum: of a number.
    """
    return typer.Option(
        *([name] if name else []),
        help=text if default is None else f"{text}  [default: {default}]",
        metavar=metavar or (f"[{'|'.join(choices)}]" if choices else None),
        show_default=default is None,
        autocompletion=_completion(choices) if choices else None,
        min=minimum,
        rich_help_panel=group,
    )


def flag(group: str, text: str, name: str) -> Any:
    """Describe an option without a value, which is off by default."""
    return typer.Option(name, help=f"{text}  [default: off]", show_default=False, rich_help_panel=group)


def _completion(choices: Sequence[str]) -> Callable[[str], Iterator[str]]:
    """Complete a name, or the last one of several that commas separate."""

    def complete(incomplete: str) -> Iterator[str]:
        before, comma, last = incomplete.rpartition(",")
        return (f"{before}{comma}{choice}" for choice in choices if choice.startswith(last))

    return complete
