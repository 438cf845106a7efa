"""Import a user's own model or data by its path, `package.module:name`; or an optional package."""

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hessian_surgery.errors import InputError
from hessian_surgery.plain_text import reason


def import_object(spec: str, argument: str) -> Callable[..., Any]:
    """Import the callable `package.module:name`; the working folder is searched as well."""
    module_name, _, name = spec.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (Exception, SystemExit) as error:  # a user's module may do anything
        why = _where(error)
        raise InputError(f"{argument}: {spec!r} is not built in and cannot be imported: {why}") from error
    if not callable(found):
        raise InputError(f"{argument}: {spec} is a {type(found).__name__}; it must be a function or a class")
    return found


def call_object(spec: str, argument: str) -> Any:
    """Import the callable `package.module:name` and call it without arguments."""
    function = import_object(spec, argument)
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise InputError(f"{argument}: {spec} must be callable without arguments, but: {error}") from error
    except ValueError:  # a built-in without a signature
        pass
    try:
        return function()
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{argument}: {spec} failed: {_where(error)}") from error


def _where(error: BaseException) -> str:
    """What went wrong in a user's code, and in which line of it."""
    if isinstance(error, SyntaxError):
        return f"{error.msg} ({error.filename}, line {error.lineno})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    last = frames[-1]
    own = Path(__file__).name == Path(last.filename).name
    return reason(error) if own else f"{type(error).__name__}: {reason(error)} ({last.filename}, line {last.lineno})"


def import_extra(package: str, argument: str, extra: str) -> Any:
    """Import a package that only some uses need; `extra` is what installs it with this one."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        if error.name != package:
            raise InputError(f"{argument}: {package} is installed but cannot be imported: {error}") from error
        raise InputError(
            f"{argument}: it needs {package}, which is not installed; pip install 'hessian-surgery[{extra}]'"
        ) from error
    except RuntimeError as error:  # as torchvision raises beside another build of torch
        raise InputError(f"{argument}: {package} is installed but cannot be imported: {error}") from error
