"""Objects by import path, `package.module:name`, for models and data of one's own."""

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

from hessian_surgery.errors import InputError


def import_object(spec: str, argument: str) -> Callable[..., Any]:
    """The callable that `package.module:name` names; the working folder counts as a place to import from."""
    module_name, _, name = spec.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"{argument}: {spec!r} is no built-in form, and cannot be imported: {error}") from error
    if not callable(found):
        raise InputError(f"{argument}: {spec} is a {type(found).__name__}; it must be a function or a class")
    return found


def call_object(spec: str, argument: str) -> Any:
    """What the callable that `package.module:name` names gives when it is called without arguments."""
    function = import_object(spec, argument)
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise InputError(f"{argument}: {spec} must be callable without arguments, but: {error}") from error
    except ValueError:  # a built-in without a signature
        pass
    return function()
