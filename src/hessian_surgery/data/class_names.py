"""Classes by name."""

from collections.abc import Mapping

from torch import Tensor

from hessian_surgery.errors import InputError

# Labels that are numbers name so many classes at most: one damaged label could ask for billions.
MOST_CLASSES = 100_000


def numbered_names(labels: Tensor) -> tuple[str, ...]:
    """Names for classes without any: their numbers, up to the largest label (n,)."""
    largest = int(labels.max())
    if largest >= MOST_CLASSES:
        raise InputError(
            f"data: a label is {largest}; numbers from {MOST_CLASSES:,} on need class names, so give classes, or "
            "number them from 0"
        )
    return tuple(str(i) for i in range(largest + 1))


def class_number(name: object, classes: tuple[str, ...], argument: str) -> int:
    """The number of a class, by its name."""
    if name not in classes:
        if str(name) in classes:
            raise InputError(f"{argument}: got {name!r}; classes have names, so write {str(name)!r}")
        known = ", ".join(classes[:12]) + (", …" if len(classes) > 12 else "")
        raise InputError(f"{argument}: got {name!r}, which is no class; there are {known}")
    return classes.index(str(name))


def require_same_names(
    known: tuple[str, ...], others: tuple[str, ...], argument: str, first: str = "calibration_data"
) -> None:
    """Refuse a part of the data whose classes have other names, or the same in another order.

    A part without names of its own, whose classes are numbers, fits any names.

    Args:
        known: the class names of the first part.
        others: those of another part.
        argument: which part the other one is, for the message.
        first: which part the first one is.

    Raises:
        InputError: two names differ, or there are more classes.
    """
    if len(others) > len(known):
        raise InputError(f"{argument}: it has {len(others)} classes and {first} has {len(known)}")
    if _numbers(known) or _numbers(others):
        return
    for number, (one, other) in enumerate(zip(known, others, strict=False)):
        if one != other:
            raise InputError(
                f"{argument}: its class {number} is {other!r}, but {first}'s is {one!r}; "
                "give all parts the same classes in the same order"
            )


def common_names(parts: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The class names of all parts: the longest list; see `require_same_names`.

    Args:
        parts: the class names of each part, by its argument.
    """
    first = max(parts, key=lambda part: (not _numbers(parts[part]), len(parts[part])))
    for argument, names in parts.items():
        require_same_names(parts[first], names, argument, first)
    return parts[first]


def _numbers(names: tuple[str, ...]) -> bool:
    """Whether classes have no names of their own."""
    return names == tuple(str(i) for i in range(len(names)))
