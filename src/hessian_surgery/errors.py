"""Errors that are the input's fault."""

from collections.abc import Iterator
from contextlib import contextmanager

from hessian_surgery.plain_text import message


class InputError(ValueError):
    """The input is at fault. The command line prints it in one line and exits with 2.

    Whatever it quotes, it has no control character and at most 480 letters.

    Example:
        >>> hs.SurgeryConfig(budget=2)
        Traceback (most recent call last):
        hessian_surgery.errors.InputError: budget: got 2; it must be a fraction between 0 and 1
    """

    def __init__(self, text: object) -> None:
        super().__init__(message(str(text)))


class FileError(InputError):
    """A file cannot be read or written: it ends a comparison, and fails no single method in it."""


class InUse(FileError):
    """Another process is writing there."""


class RankLost(RuntimeError):
    """Another process that shares the work has ended, or has not answered in time."""


@contextmanager
def calling_it(argument: str, named: str) -> Iterator[None]:
    """Let an InputError that begins with `named` begin with the argument that a person gave."""
    try:
        yield
    except InputError as error:
        text = str(error)
        if not text.startswith(f"{named}: "):
            raise
        raise type(error)(f"{argument}: {text.removeprefix(f'{named}: ')}") from error


def require(holds: bool, argument: str, value: object, needed: str) -> None:
    """Raise an InputError with the argument, what it got and what it must be, unless it holds."""
    if not holds:
        raise InputError(f"{argument}: got {value!r}; it must be {needed}")
