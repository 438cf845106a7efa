"""Look at a pickle before anything is built from it: how deep, how large, how much memory."""

import pickletools
from typing import IO, Any, TypeAlias

# How deep containers may be nested: Python hashes a deeper tuple until its stack overflows.
DEEPEST = 100
# Values of all containers together, each counted wherever it is: to hash is to visit them all.
MOST = 10_000_000
# Depth and size of a value.
Extent: TypeAlias = tuple[int, int]
# What changes the container below it on the stack.
CHANGING = ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD")
PUTS = ("PUT", "BINPUT", "LONG_BINPUT")
GETS = ("GET", "BINGET", "LONG_BINGET")


def scan_pickle(file: IO[bytes], size: int) -> list[str]:
    """Read one pickle as instructions, and run none of them.

    Args:
        file: at its beginning; it is left at its end.
        size: of the file, in bytes; no number of a memo is larger.

    Returns:
        The texts in it.

    Raises:
        ValueError: it is no pickle, or a bomb.
    """
    stack: list[Extent | None] = []
    memo: dict[int, Extent] = {}
    texts = []
    for code, value, _ in pickletools.genops(file):
        if isinstance(value, str):
            texts.append(value)
        if code.name in PUTS or code.name == "MEMOIZE":
            number = len(memo) if code.name == "MEMOIZE" else int(value or 0)
            if number > size:
                raise ValueError(f"its memo has {number:,} places, more than it has bytes")
            memo[number] = stack[-1] or (0, 1)
        elif code.name in GETS:
            stack.append(memo[int(value or 0)])
        elif code.name == "DUP":
            stack.append(stack[-1])
        else:
            _step(stack, code)
        if stack and stack[-1] is not None and (stack[-1][0] > DEEPEST or stack[-1][1] > MOST):
            raise ValueError(f"it holds a value of depth {stack[-1][0]:,} and size {min(stack[-1][1], 2**63):,}")
    return texts


def _step(stack: list[Extent | None], code: Any) -> None:
    """Take an instruction's values from the stack, and put its result there."""
    names = [kind.name for kind in code.stack_before]
    popped: list[Extent] = []
    if "mark" in names:
        while (top := stack.pop()) is not None:
            popped.append(top)
        names = names[: names.index("mark")]
    popped.extend(stack.pop() or (0, 1) for _ in names)
    stack.extend(None if kind.name == "mark" else _extent(popped, code.name) for kind in code.stack_after)


def _extent(parts: list[Extent], name: str) -> Extent:
    """The depth and size of what an instruction makes of parts; the last is the lowest."""
    size = 1 + sum(part[1] for part in parts)
    if name in CHANGING:
        *inner, holder = parts
        return max(holder[0], 1 + max((part[0] for part in inner), default=0)), size
    return 1 + max((part[0] for part in parts), default=-1), size
