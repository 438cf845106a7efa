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


def why_not_loaded(error: BaseException) -> str:
    """Why a library's code failed: its own reason, unless torchvision is at the bottom of it."""
    link: BaseException | None = error
    while link is not None:
        if _is_misfit(link):
            return "torchvision does not fit this torch; reinstall it for this build of torch, or uninstall it"
        link = link.__cause__ or link.__context__
    return reason(error)


def _is_misfit(error: BaseException) -> bool:
    """Whether torchvision was found and could not be imported, as beside another build of torch."""
    if isinstance(error, RuntimeError):
        return "torchvision::" in str(error)
    missing = isinstance(error, ImportError) and error.name == "torchvision" and "No module" in str(error)
    return isinstance(error, ImportError | AttributeError) and "torchvision" in str(error) and not missing


def import_extra(package: str, argument: str, extra: str) -> Any:
    """Import a package that only some uses need; `extra` is what installs it with this one."""
    try:
        return importlib.import_module(package)
    except (ImportError, RuntimeError) as error:  # torchvision raises the latter beside another torch
        if isinstance(error, ImportError) and error.name == package:
            raise InputError(
                f"{argument}: it needs {package}, which is not installed; pip install 'hessian-surgery[{extra}]'"
            ) from error
        why = why_not_loaded(error)
        raise InputError(f"{argument}: {package} is installed but cannot be imported: {why}") from error
