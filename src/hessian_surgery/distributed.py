"""Exchange between ranks: the few collectives that shared work needs; none on a single process.

Every rank runs the same program on the same data. What one computes from a part of the data is
exchanged here, so that afterwards all hold the same bits and decide the same.
"""

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from hessian_surgery.errors import FileError, InputError, RankLost, require
from hessian_surgery.parse_numbers import parse_number
from hessian_surgery.ranks import Ranks, acting, launched, present

Value = TypeVar("Value")
Item = TypeVar("Item")

# Seconds that a rank waits for the others, and the variable that changes them.
PATIENCE = 600.0
PATIENCE_NAME = "HESSIAN_SURGERY_TIMEOUT"


# Errors that all ranks share (`together`); the first that fits.
KINDS: dict[str, type[Exception]] = {
    "memory": torch.OutOfMemoryError,
    "file": FileError,
    "input": InputError,
    "missing": NotImplementedError,
    "other": RuntimeError,
}


@contextmanager
def joined_ranks() -> Iterator[Ranks]:
    """Share the work of this block among all processes that `torchrun` has started.

    Every process must run the same block, and all leave it together: none waits longer for another
    than `HESSIAN_SURGERY_TIMEOUT` says. Outside `torchrun` nothing changes. A process group that
    is there already is used.

    Raises:
        InputError: the processes cannot reach each other.

    Example:
        >>> with hs.joined_ranks() as ranks:
        ...     ranks.rank, ranks.size
        (0, 1)
    """
    ranks = launched()
    if ranks is None:
        with acting(present()) as same:
            yield same
        return
    own = not dist.is_initialized()
    if own:
        _open_group(ranks)
    with acting(replace(ranks, joined=True)) as shared:
        yield shared
        if own:
            wait_for_all()
    # Not after an error: closing would wait for ranks that may be gone.
    if own:
        dist.destroy_process_group()


def _open_group(ranks: Ranks) -> None:
    # Its functions have the group that is open when it is imported as default arguments. They would
    # keep the group's threads alive after it is closed, and such a thread can abort the process
    # while the interpreter ends.
    importlib.import_module("torch.distributed.nn.functional")
    # NCCL refuses two ranks on one GPU.
    nccl = torch.cuda.is_available() and dist.is_nccl_available() and ranks.nearby <= torch.cuda.device_count()
    if torch.cuda.is_available():
        torch.cuda.set_device(ranks.local % torch.cuda.device_count())
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if nccl else "gloo", timeout=timedelta(seconds=_patience()))
    except (RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"torchrun: the ranks cannot reach each other: {reason}") from error


def _patience() -> float:
    seconds = parse_number(PATIENCE_NAME, os.environ.get(PATIENCE_NAME, str(PATIENCE)))
    require(0 < seconds < 1e6, PATIENCE_NAME, seconds, "a number of seconds above 0")
    return seconds


def agreed(value: Value) -> Value:
    """The value that the first rank has, on every rank; for what depends on time or free memory."""
    if not present().joined:
        return value
    held = [value]
    with _exchange():
        dist.broadcast_object_list(held, src=0)
    return held[0]


def require_same(value: str, message: str) -> None:
    """Raise an InputError on every rank unless all ranks have the same value."""
    if present().joined:
        held: list[Any] = [None] * present().size
        with _exchange():
            dist.all_gather_object(held, value)
        other = next((rank for rank, found in enumerate(held) if found != held[0]), None)
        if other is not None:
            raise InputError(f"torchrun: rank {other} {message}")


def least(values: Sequence[int]) -> list[int]:
    """The smallest of each value over all ranks."""
    if not present().joined:
        return list(values)
    held = torch.tensor(values, dtype=torch.int64)
    with _exchange():
        dist.all_reduce(held, dist.ReduceOp.MIN)
    return held.tolist()


def wait_for_all() -> None:
    """Wait until every rank has come here, such as until a file is written that all read."""
    least([0])


def total(tensor: Tensor) -> Tensor:
    """The sum of a tensor over all ranks, in place; the same bits on each."""
    if present().joined:
        with _exchange():
            sent = _sent(tensor)
            dist.all_reduce(sent)
            if sent is not tensor:
                tensor.copy_(sent)
    return tensor


def total_slice(shares: Tensor) -> Tensor:
    """This rank's slice (n / size,) of the sum of vectors (n,) over all ranks."""
    sent = _sent(shares)
    found = torch.empty(len(sent) // present().size, dtype=sent.dtype, device=sent.device)
    # Torch 2.13 has given both functions new names.
    scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    with _exchange():
        scatter(found, sent)
    return found.to(shares.device)


def join_slices(part: Tensor) -> Tensor:
    """All ranks' tensors (n, …), equal in shape, one after the other (size · n, …)."""
    sent = _sent(part.contiguous())
    found = torch.empty(present().size * len(sent), *sent.shape[1:], dtype=sent.dtype, device=sent.device)
    gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    with _exchange():
        gather(found, sent)
    return found.to(part.device)


def join_batches(mine: Sequence[Tensor], count: int, size: int, device: torch.device) -> Tensor:
    """Rows (count, …) in float32 of all batches in order, of which each rank has made its turns.

    Args:
        mine: rows of this rank's batches; there may be none.
        count: how many rows there are on all ranks.
        size: rows of a batch; only the last may be shorter.
        device: where rows go that other ranks made.
    """
    ranks = present()
    if not ranks.joined:
        return torch.cat(list(mine))
    rounds = -(-count // (size * ranks.size))
    width = mine[0].shape[1:] if mine else torch.Size()
    if count <= size * (ranks.size - 1):  # some ranks have made no batch, and do not know the width
        width = agreed(width)
    filled = torch.zeros(rounds * size, *width, device=mine[0].device if mine else device)
    if mine:
        rows = torch.cat(list(mine))
        filled[: len(rows)] = rows
    parts = join_slices(filled).view(ranks.size, rounds, size, *width)
    return parts.transpose(0, 1).reshape(-1, *width)[:count]


def in_turns(items: Sequence[Item], work: Callable[[Item], Value]) -> Iterator[Value]:
    """What `work` gives for all items, in order; ranks take turns, and exchange what they find.

    For what takes long to read. Every rank must take all of it.
    """
    ranks = present()
    if not ranks.joined:
        yield from map(work, items)
        return
    for first in range(0, len(items), ranks.size):
        some = items[first : first + ranks.size]
        with together():
            own = work(some[ranks.rank]) if ranks.rank < len(some) else None
        held: list[Any] = [None] * ranks.size
        with _exchange():
            dist.all_gather_object(held, own)
        yield from held[: len(some)]


@contextmanager
def together() -> Iterator[None]:
    """A block that fails on all ranks if it fails on one, so that none waits for it.

    A rank without an error of its own raises one like that of the first rank that has one. The
    block must not exchange anything.
    """
    if not present().joined:
        yield
        return
    failed: Exception | None = None
    try:
        yield
    except (RuntimeError, InputError) as error:
        failed = error
    if least([0 if failed else 1]) == [1]:
        return
    told: list[Any] = [None] * present().size
    with _exchange():
        dist.all_gather_object(told, None if failed is None else (_kind(failed), str(failed)))
    kind, text = next(one for one in told if one is not None)
    raise failed if failed is not None and _kind(failed) == kind else KINDS[kind](text)


def _kind(error: Exception) -> str:
    return next(name for name, kind in KINDS.items() if isinstance(error, kind))


def _sent(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy on the host where the group cannot take it from a GPU."""
    return tensor.cpu() if tensor.is_cuda and "nccl" not in dist.get_backend_config() else tensor


@contextmanager
def _exchange() -> Iterator[None]:
    """A block in which a lost rank shows."""
    try:
        yield
    except RuntimeError as error:
        why = "did not answer in time" if "imed out" in str(error) else "has ended"
        raise RankLost(f"another rank {why}") from error
