"""Leaks: images that two parts of the data share, or that one part holds twice."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch

from hessian_surgery.data.data_hash import image_hashes
from hessian_surgery.data.labelled import Data, LabelledSet, Noun, as_labelled
from hessian_surgery.errors import InputError

# A run is refused if two parts share more than this share of the images that it is judged on.
LIMIT = 0.01
# A sample of the training images must show this many shared images before a run is refused.
FEWEST = 3
# What is said if calibration images are training images, and were meant to be.
ON_TRAINING = (
    "the calibration images are training images, as was asked: the model does better on them than on new ones, so only "
    "held-out images say what was gained"
)
# How many images a sentence names.
NAMED = 3


@dataclass(frozen=True)
class HashedPart:
    """The hashes of a part's images, or of a sample of them.

    Attributes:
        argument: where the images come from, such as `heldout_data`.
        index: position of each hashed image in its source.
        hashes: of their inputs.
        total: images in the part; if more than were hashed, these are a sample.
        noun: what its samples are called.
    """

    argument: str
    index: list[int]
    hashes: list[bytes]
    total: int
    noun: Noun = "images"


@dataclass(frozen=True)
class Leak:
    """Images of one part whose inputs are those of another's images, bit for bit.

    Attributes:
        first: where the one part comes from.
        second: where the other comes from; the same if a part holds copies of its own images.
        pairs: for each shared image its position in the second part's source, and in the first's.
        compared: images of the first part that were compared.
        total: images of the first part.
        noun: what samples are called.
    """

    first: str
    second: str
    pairs: list[tuple[int, int]]
    compared: int
    total: int
    noun: Noun = "images"

    @property
    def estimate(self) -> int:
        """Shared images in all: those found, scaled up if a sample was compared."""
        return round(len(self.pairs) * self.total / self.compared)

    @property
    def sentence(self) -> str:
        """Which images, for a warning."""
        return self.describe(f" of {self.second}")

    def describe(self, whose: str = "") -> str:
        """Which images; `whose` follows their number."""
        one = len(self.pairs) == 1
        start = f"{len(self.pairs)} {self.noun[: -1 if one else None]}{whose} {'is' if one else 'are'}"
        if self.first == self.second:
            return f"{start} {'a copy of another' if one else 'copies of others'} there: {self.named}"
        if self.compared == self.total:
            return f"{start} in {self.first} as well: {self.named}"
        return (
            f"{start} among the {self.compared:,} of {self.total:,} {self.noun} of {self.first} that were compared, so "
            f"about {self.estimate:,} in all: {self.named}"
        )

    @property
    def named(self) -> str:
        """The first few shared images by their index."""
        listed = ", ".join(f"{own} (there {other})" for own, other in self.pairs[:NAMED])
        return f"index {listed}" + (", …" if len(self.pairs) > NAMED else "")

    def as_dict(self) -> dict[str, Any]:
        """The form that `result.json` holds."""
        return {"first": self.first, "second": self.second, "estimate": self.estimate, "pairs": self.pairs}


def hash_part(data: LabelledSet, argument: str) -> HashedPart:
    """Hash the inputs of every image."""
    return HashedPart(
        argument, data.index.tolist(), image_hashes(data), len(data), data.noun if len(data) else "images"
    )


def hash_training(training: LabelledSet, drawn: Sequence[LabelledSet]) -> HashedPart:
    """Hash what is cheap to read: all training images in memory, or those that were read anyway.

    Args:
        training: the training images.
        drawn: sets drawn from them and kept in memory, which may overlap.
    """
    if training.in_memory:
        return hash_part(training, "training_data")
    found: dict[int, bytes] = {}
    for data in drawn:
        part = hash_part(data, "training_data")
        found |= dict(zip(part.index, part.hashes, strict=True))
    return HashedPart("training_data", list(found), list(found.values()), len(training))


def find_leaks(parts: Sequence[HashedPart], judged: int) -> tuple[Leak, ...]:
    """The images that any two parts share.

    Args:
        parts: in the order training, calibration, held-out data; any may be missing.
        judged: images in the smaller of the parts that the model was not trained on.

    Raises:
        InputError: two parts share more than `LIMIT` of `judged`.
    """
    found = tuple(leak for pair in combinations(parts, 2) if (leak := find_shared_images(*pair)))
    for leak in found:
        sure = leak.compared == leak.total or len(leak.pairs) >= FEWEST
        if sure and leak.estimate > LIMIT * judged:
            raise InputError(
                f"{leak.second}: {leak.describe()}; that is more than {100 * LIMIT:g} % of the {judged:,} {leak.noun} "
                "to decide or judge with, so leave them out of one of the two; in Python, hs.drop_shared does that"
            )
    return found


def find_copies(part: HashedPart) -> tuple[list[int], Leak | None]:
    """The position of the first image with the same inputs, for each image; and the copies."""
    first: dict[bytes, int] = {}
    firsts = [first.setdefault(value, i) for i, value in enumerate(part.hashes)]
    copies = [(part.index[i], part.index[original]) for i, original in enumerate(firsts) if original != i]
    whole = len(part.hashes)
    return firsts, Leak(part.argument, part.argument, copies, whole, whole, part.noun) if copies else None


def drop_shared(data: Data, *others: Data) -> LabelledSet:
    """The samples whose inputs are in none of the other sets, bit for bit, and each of them once.

    Args:
        data: any form that `as_labelled` takes.
        others: sets that it must not overlap with, such as the training data.

    Example:
        >>> hs.drop_shared(heldout, train, calibration)
        LabelledSet(600 samples of 3 classes)
    """
    own = as_labelled(data)
    seen = {value for other in others for value in image_hashes(as_labelled(other))}
    kept = []
    for position, value in enumerate(image_hashes(own)):
        if value not in seen:
            kept.append(position)
            seen.add(value)
    if not kept:
        raise InputError(f"data: all {len(own):,} samples are in the other sets; give other data")
    return own.subset(torch.tensor(kept))


def find_shared_images(first: HashedPart, second: HashedPart) -> Leak | None:
    """The images of the second part that are in the first as well, if there are any."""
    known = dict(zip(first.hashes, first.index, strict=True))
    pairs = [(i, known[value]) for i, value in zip(second.index, second.hashes, strict=True) if value in known]
    return Leak(first.argument, second.argument, pairs, len(first.hashes), first.total, second.noun) if pairs else None
