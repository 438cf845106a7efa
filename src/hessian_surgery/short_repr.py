"""A repr in one line, for records that may hold tensors, weights or long lists."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from hessian_surgery.plain_text import one_line

# Letters of a whole repr, and of one text in it; values of a list that are written out.
LONGEST = 400
TEXT = 60
FEW = 4


def short_repr(record: Any) -> str:
    """`Name(field=value, …)` in at most 500 letters, without the fields that have their defaults.

    Assigned to `__repr__` in the body of a dataclass.
    """
    listed = ""
    for own in fields(record):
        value = getattr(record, own.name)
        if _is_default(own, value):
            continue
        part = f"{', ' if listed else ''}{own.name}={_short(value)}"
        if len(listed) + len(part) > LONGEST:
            listed += ", …"
            break
        listed += part
    return f"{type(record).__name__}({listed})"


def _is_default(own: "Field[Any]", value: Any) -> bool:
    default = own.default if own.default_factory is MISSING else own.default_factory()
    return type(value) is type(default) and bool(value == default)


def _short(value: Any) -> str:
    """A value in a few letters: tensors by shape, long lists by length, records by name."""
    if isinstance(value, bool | int | None):
        return repr(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return repr(_cut(value))
    if hasattr(value, "shape"):
        return f"{type(value).__name__}{tuple(value.shape)}"
    if isinstance(value, list | tuple | Mapping):
        return _few(value)
    if is_dataclass(value) and type(value).__str__ is not object.__str__:
        return f"<{_cut(str(value))}>"
    name = getattr(value, "__qualname__", None)
    return f"{type(value).__name__}(…)" if name is None else name


def _few(values: Any) -> str:
    """A list, tuple or mapping: its values if they are few and plain, else how many there are."""
    held = list(values.values()) if isinstance(values, Mapping) else list(values)
    if len(held) > FEW or not all(isinstance(value, bool | int | float | str | None) for value in held):
        return f"<{type(values).__name__} of {len(held)}>"
    if isinstance(values, Mapping):
        return "{" + ", ".join(f"{_short(key)}: {_short(value)}" for key, value in values.items()) + "}"
    inside = ", ".join(map(_short, held))
    return f"[{inside}]" if isinstance(values, list) else f"({inside}{',' if len(held) == 1 else ''})"


def _cut(text: str) -> str:
    whole = one_line(text)
    return whole if len(whole) <= TEXT else whole[: TEXT - 1] + "…"
