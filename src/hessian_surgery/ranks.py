"""Ranks: which of several processes this is, when `torchrun` runs one command in many."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Ranks:
    """The place of this process among those that share the work; by default there is no other.

    Attributes:
        rank: its number, from 0.
        size: how many there are.
        local: its number among those on this machine, from 0.
        nearby: how many are on this machine.
        joined: whether they can exchange tensors; False leaves all work to this process.
        writes: whether this process writes files and prints: of several, only the first does.

    Example:
        >>> hs.Ranks(rank=1, size=4).part(10)
        range(3, 5)
    """

    rank: int = 0
    size: int = 1
    local: int = 0
    nearby: int = 1
    joined: bool = False
    writes: bool = True

    def part(self, count: int) -> range:
        """The items of this rank, of `count` in a row: parts differ in size by one at most."""
        first, last = (-(-number * count // self.size) for number in (self.rank, self.rank + 1))
        return range(first, last)

    def turn(self, done: int) -> "Ranks":
        """The same ranks after `done` items have been dealt out: the next goes to the next rank."""
        return replace(self, rank=(self.rank - done) % self.size)


_ALONE = Ranks()
_present = _ALONE


def present() -> Ranks:
    """The ranks that share the work now."""
    return _present


@contextmanager
def acting(ranks: Ranks) -> Iterator[Ranks]:
    """Work as one of these ranks in this block."""
    global _present
    before = _present
    _present = ranks
    try:
        yield ranks
    finally:
        _present = before


@contextmanager
def alone() -> Iterator[None]:
    """Work in this process only in this block, such as for a trial that is timed.

    What is written and printed is still left to the first rank.
    """
    with acting(replace(_present, rank=0, size=1, joined=False)):
        yield


def launched(environment: Mapping[str, str] = os.environ) -> Ranks | None:
    """The ranks that `torchrun` has started, not joined yet; None if it has not."""
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    rank, size, local, nearby = (int(environment[name]) for name in names)
    return Ranks(rank, size, local, nearby, writes=rank == 0)
