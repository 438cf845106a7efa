"""What the C library does with freed memory: it is kept between passes, and given back after them.

By itself, it hands every block above 32 MB back to the system when it is freed, and gets the next
one page by page. On a CPU, that took a fifth of an operation on a ResNet-50. What threads
beside the main one allocate is not kept: their memory comes in blocks of 64 MB at most.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

# Names of settings in glibc's `mallopt`: how much is free at the end before it is given back, and
# from what size on a block is the system's own.
TRIM, OWN = -1, -3
# What they are in a block that keeps memory; and after it, where glibc's own rules lead to.
KEEP = {TRIM: 2**31 - 1, OWN: 2**30}
USUAL = {TRIM: 2**26, OWN: 2**25}

_lock = threading.Lock()
_inside = 0


def give_back() -> None:
    """Give freed memory back to the system, where the C library can."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def kept_for_passes(device: torch.device) -> Iterator[None]:
    """Keep freed memory in this block, for passes on a CPU; it may be entered again inside."""
    if device.type != "cpu":
        yield
        return
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _count(change: int) -> None:
    """Enter or leave a block; the first and the last one change the settings."""
    global _inside  # one for the process, as the settings are
    with _lock:
        _inside += change
        if _inside == max(0, change):
            _set(KEEP if change > 0 else USUAL)
            if change < 0:
                give_back()


def _set(values: dict[int, int]) -> None:
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for name, value in values.items():
            library.mallopt(name, value)
