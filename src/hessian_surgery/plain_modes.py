"""Torch's modes: what a caller has switched on around a call does not change what it does."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def plain_modes() -> Iterator[None]:
    """Gradients on, inference mode and autocast off, in this block."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def in_plain_modes(function: Callable[P, T]) -> Callable[P, T]:
    """The same function, for callers in any mode."""

    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> T:
        with plain_modes():
            return function(*arguments, **options)

    return call
