"""Split, cap, sample and join labelled sets; every draw is seeded."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from hessian_surgery.data import batches
from hessian_surgery.data.labelled import Data, LabelledSet, as_labelled
from hessian_surgery.data.leaks import find_leaks, hash_part
from hessian_surgery.data.ragged import join_ragged
from hessian_surgery.errors import InputError
from hessian_surgery.seeding import generator

Sampling: TypeAlias = Literal["natural", "stratified"]


def stratified_split(data: Data, fractions: Sequence[float] = (0.5, 0.5), seed: int = 0) -> tuple[LabelledSet, ...]:
    """Split a set into disjoint parts; each has its fraction of every class, to the nearest sample.

    Args:
        data: the set to split, in any form that `as_labelled` takes.
        fractions: one per part; all positive, with a sum of at most 1.
        seed: fixes the parts.

    Example:
        >>> hs.stratified_split(heldout, (0.5, 0.25))
        (LabelledSet(300 samples of 3 classes), LabelledSet(150 samples of 3 classes))
    """
    if min(fractions) <= 0 or sum(fractions) > 1 + 1e-9:
        raise InputError(f"fractions: got {tuple(fractions)}; give positive numbers that sum to at most 1")
    data = as_labelled(data)
    shuffled = _shuffled_by_class(data.labels, generator(seed, "split"))
    parts: list[list[Tensor]] = [[] for _ in fractions]
    for members in shuffled:
        start = 0
        cumulative = 0.0
        for part, fraction in zip(parts, fractions, strict=True):
            cumulative += fraction
            end = round(cumulative * len(members))
            part.append(members[start:end])
            start = end
    return tuple(data.subset(torch.cat(part).sort().values) for part in parts)


def stratified_folds(labels: Tensor, count: int, draw: torch.Generator | None = None) -> Tensor:
    """Number of the fold (n,), from 0 to `count` − 1, of each sample.

    The samples of each class are dealt out in turn, in their own order or, with `draw`, shuffled.
    """
    folds = torch.empty_like(labels)
    for members in _by_class(labels) if draw is None else _shuffled_by_class(labels, draw):
        folds[members] = torch.arange(len(members), device=labels.device) % count
    return folds


def halves(labels: Tensor, seed: int) -> Tensor:
    """The half (n,), 0 or 1, that each sample is in; the same wherever halves are wanted."""
    return stratified_folds(labels, 2, generator(seed, "sides"))


def cap_per_class(data: LabelledSet, cap: int, seed: int = 0) -> LabelledSet:
    """Draw at most `cap` samples of each class (the calibration set of section 9.2).

    Example:
        >>> hs.cap_per_class(heldout, 10)
        LabelledSet(30 samples of 3 classes)
    """
    if cap < 1:
        raise InputError(f"cap: got {cap}; give at least 1 sample per class")
    shuffled = _shuffled_by_class(data.labels, generator(seed, "cap"))
    return data.subset(torch.cat([members[:cap] for members in shuffled]).sort().values)


def long_tailed(data: LabelledSet, tail: float, seed: int = 0) -> LabelledSet:
    """Make a set long-tailed.

    The classes are ranked in random order. The class of rank r keeps a share `tail`^(r/(C−1)) of
    its samples, and at least one.
    """
    draw = generator(seed, "digits-tail")
    order = torch.randperm(len(data.classes), generator=draw)
    kept = []
    for rank, label in enumerate(order):
        members = (data.labels == label).nonzero().squeeze(1)
        share = tail ** (rank / max(1, len(order) - 1))
        kept.append(members[torch.randperm(len(members), generator=draw)][: max(1, round(share * len(members)))])
    return data.subset(torch.cat(kept).sort().values)


def hessian_batch(
    data: LabelledSet, samples: int, sampling: Sampling = "natural", seed: int = 0, iteration: int = 0
) -> LabelledSet:
    """Draw the batch whose Hessian is taken: `samples` of the data, or all if there are no more.

    Args:
        data: the images to draw from, usually training images.
        samples: n.
        sampling: "natural" draws uniformly. "stratified" draws n/C of each class; a class with
            fewer gives all it has, and the others make up for it.
        seed: fixes the draw, together with `iteration`.
        iteration: 0 for a batch given once (Algorithm 2's input), t for one drawn per iteration.

    Example:
        >>> hs.hessian_batch(train, 64)
        LabelledSet(64 samples of 3 classes)
    """
    if samples < 1:
        raise InputError(f"hessian_samples: got {samples}; give at least 1")
    draw = generator(seed, "hessian", iteration)
    if len(data) <= samples:
        return data
    if sampling == "natural":
        return data.subset(torch.randperm(len(data), generator=draw)[:samples].sort().values)
    shuffled = _shuffled_by_class(data.labels, draw)
    # The first sample of each class, then the second of each, and so on.
    rank = torch.cat([torch.arange(len(members)) for members in shuffled])
    order = torch.cat(shuffled)[torch.argsort(rank, stable=True)]
    return data.subset(order[:samples].sort().values)


def join_sets(calibration: LabelledSet, other: LabelledSet) -> LabelledSet:
    """Join the calibration data and another set of the same classes into one, read into memory now.

    Raises:
        InputError: the classes differ, or the sets share images (`find_leaks`).
    """
    if calibration.classes != other.classes:
        raise InputError(f"data: one set has the classes {calibration.classes[:3]}…, the other {other.classes[:3]}…")
    ragged = None
    if calibration.ragged is not None and other.ragged is not None:
        ragged = join_ragged(calibration.ragged, len(calibration), other.ragged)
    calibration = calibration.resident()
    other = other.resident()
    parts = (hash_part(calibration, "calibration_data"), hash_part(other, "heldout_data"))
    find_leaks(parts, min(len(calibration), len(other)))
    labels = torch.cat([calibration.labels, other.labels])
    index = torch.arange(len(labels))
    if ragged is not None:
        return LabelledSet(ragged.fetch, labels, calibration.classes, index, ragged=ragged).resident()
    held = batches.join([calibration.inputs(), other.inputs()])
    return LabelledSet(lambda chosen: batches.take(held, chosen), labels, calibration.classes, index, in_memory=True)


def _shuffled_by_class(labels: Tensor, draw: torch.Generator) -> list[Tensor]:
    """The positions of each class that occurs, in random order."""
    return [group[torch.randperm(len(group), generator=draw)] for group in _by_class(labels)]


def _by_class(labels: Tensor) -> list[Tensor]:
    """The positions of each class that occurs, in order."""
    return [(labels == label).nonzero().squeeze(1) for label in labels.unique()]
