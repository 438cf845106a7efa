"""Check values against type hints: what files held, and what callers gave."""

import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from hessian_surgery.errors import InputError

# Whole numbers from here on do not fit into 64 bits.
TOO_LARGE = 2**63
NAMES = {int: "a whole number", float: "a finite number", str: "a text", bool: "true or false", type(None): "nothing"}

T = TypeVar("T")


def fault(value: Any, hint: Any, place: str = "") -> str | None:
    """Say where a value does not fit a type hint, and what belongs there; None if it fits.

    Lists fit tuples and sequences; whole numbers fit floats; floats are finite. Dicts are checked
    against the fields of a TypedDict, and may have more. Hints of other kinds are not checked.

    Args:
        value: plain values, or records.
        hint: a type, with anything that `typing` makes of types.
        place: what the value is called.
    """
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        faults = [fault(value, one, place) for one in get_args(hint)]
        return None if None in faults else _deepest(faults, place, value, hint)
    if hint is Any or isinstance(hint, TypeVar):
        return None
    if origin is Literal:
        return None if _is_one_of(value, get_args(hint)) else _wrong(place, value, hint)
    if is_typeddict(hint):
        return _entries_fault(value, hint, place) if isinstance(value, dict) else _wrong(place, value, hint)
    if origin in (list, tuple, Sequence, typing.Sequence) and isinstance(value, list | tuple):
        return _items_fault(value, hint, place)
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        key_hint, value_hint = get_args(hint)
        pairs = ((fault(key, key_hint, f"a key of {place}"), key, own) for key, own in value.items())
        found = (wrong or fault(own, value_hint, _at(place, key)) for wrong, key, own in pairs)
        return next((one for one in found if one), None)
    return None if _is_plain(value, hint, origin) else _wrong(place, value, hint)


def built(kind: Callable[..., T], content: Any, place: str = "") -> T:
    """Make a record from plain values, as JSON holds them.

    Raises:
        TypeError: a value is missing, unknown or of another type.
    """
    if not isinstance(content, dict):
        raise TypeError(f"{place or 'it'} is {_shown(content)}; it must be an object")
    hints = _hints(kind)
    for own in fields(kind):  # type: ignore[arg-type]
        if own.name in content and (found := fault(content[own.name], hints[own.name], _at(place, own.name))):
            raise TypeError(found)
    try:
        return kind(**content)
    except TypeError as error:
        raise TypeError(f"{place or 'it'} does not hold what it must: {str(error).partition(') ')[2]}") from error


def require_types(record: Any) -> None:
    """Refuse a record, made by a caller, with a value of another type than its field.

    Numbers of NumPy become Python's.
    """
    kind: Any = type(record)
    for own in fields(record):
        value = getattr(record, own.name)
        if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
            value = value.item()
            object.__setattr__(record, own.name, value)
        hint = _hints(kind)[own.name]
        if fault(value, hint) is None:
            continue
        if get_origin(hint) in (dict, Mapping) and isinstance(value, Mapping):
            _, wanted = get_args(hint)
            for key, held in value.items():
                if not isinstance(key, str):
                    raise InputError(f"{own.name}: got the key {_shown(key)}; it must be a name")
                if fault(held, wanted) is not None:
                    raise InputError(f"{own.name}: got {key}={_shown(held)}; it must be {_named(wanted)}")
        raise InputError(f"{own.name}: got {_shown(value)}; it must be {_named(hint)}")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _is_plain(value: Any, hint: Any, origin: Any) -> bool:
    if hint is bool or hint is str:
        return isinstance(value, hint)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < TOO_LARGE
    if hint is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and abs(value) < TOO_LARGE**16 and math.isfinite(value)
    if hint is None or hint is type(None):
        return value is None
    if origin is Callable or hint is Callable or getattr(hint, "_is_protocol", False):
        return callable(value)
    return isinstance(value, origin or hint) if isinstance(origin or hint, type) else True


def _is_one_of(value: Any, choices: Sequence[Any]) -> bool:
    return any(type(value) is type(one) and value == one for one in choices)


def _entries_fault(value: dict[str, Any], hint: Any, place: str) -> str | None:
    hints = _hints(hint)
    lacking = next((key for key in hints if key in hint.__required_keys__ and key not in value), None)
    if lacking is not None:
        return f"{_at(place, lacking)} is missing"
    found = (fault(value[key], own, _at(place, key)) for key, own in hints.items() if key in value)
    return next((one for one in found if one), None)


def _items_fault(value: Sequence[Any], hint: Any, place: str) -> str | None:
    arguments = get_args(hint)
    if get_origin(hint) is tuple and arguments[-1] is not Ellipsis:
        if len(value) != len(arguments):
            return f"{place or 'it'} has {len(value)} values, not {len(arguments)}"
        hints: Sequence[Any] = arguments
    else:
        hints = (arguments[0],) * len(value)
    found = (fault(own, one, f"{place}[{i}]") for i, (own, one) in enumerate(zip(value, hints, strict=True)))
    return next((one for one in found if one), None)


def _deepest(faults: Sequence[str | None], place: str, value: Any, hint: Any) -> str:
    """Of the reasons why no alternative fits, one about a part of the value, if there is one."""
    own = _wrong(place, value, hint)
    inner = [one for one in faults if one and not one.startswith(f"{place or 'it'} is ")]
    return inner[0] if inner else own


def _at(place: str, key: object) -> str:
    return f"{place}.{str(key)[:60]}" if place else str(key)[:60]


def _wrong(place: str, value: Any, hint: Any) -> str:
    return f"{place or 'it'} is {_shown(value)}; it must be {_named(hint)}"


def _shown(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= TOO_LARGE:
        return "too large a number"
    if isinstance(value, str | bool | int | float | None):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:58]}…'"
    return f"{'an' if type(value).__name__[0] in 'aeiou' else 'a'} {type(value).__name__}"


def _named(hint: Any) -> str:
    """A type hint in words."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_named(one) for one in get_args(hint)))
    if origin is Literal:
        listed = ", ".join(str(one) for one in get_args(hint))
        return f"one of {listed}" if len(get_args(hint)) > 1 else listed
    if hint in NAMES:
        return NAMES[hint]
    if origin in (list, tuple, Sequence):
        return "a list"
    if origin in (dict, Mapping) or is_typeddict(hint) or is_dataclass(hint):
        name = getattr(hint, "__name__", "")
        return name if is_dataclass(hint) and name else "an object"
    return "a function" if origin is Callable else str(getattr(hint, "__name__", hint))
