"""Seeded, stratified choices of samples: halves, caps per class, Hessian batches."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.errors import InputError
from hessian_surgery.seeding import generator

Sampling: TypeAlias = Literal["natural", "stratified"]


def stratified_split(
    data: LabelledSet, fractions: Sequence[float] = (0.5, 0.5), seed: int = 0
) -> tuple[LabelledSet, ...]:
    """Disjoint parts that hold each class in the given fractions, to the nearest sample.

    Args:
        data: what to split.
        fractions: one per part, positive, summing to at most 1.
        seed: the same seed gives the same parts.
    """
    if min(fractions) <= 0 or sum(fractions) > 1 + 1e-9:
        raise InputError(f"split: fractions {tuple(fractions)} must be positive and sum to at most 1")
    shuffled = _shuffled_by_class(data.labels, generator(seed, "split"))
    parts: list[list[Tensor]] = [[] for _ in fractions]
    for members in shuffled:
        start, cumulative = 0, 0.0
        for part, fraction in zip(parts, fractions, strict=True):
            cumulative += fraction
            end = round(cumulative * len(members))
            part.append(members[start:end])
            start = end
    return tuple(data.subset(torch.cat(part).sort().values) for part in parts)


def stratified_folds(labels: Tensor, count: int, draw: torch.Generator | None = None) -> Tensor:
    """Which of so many parts each sample (n,) is in: those of a class in turn, or in random order, by a draw."""
    folds = torch.empty_like(labels)
    for members in _by_class(labels) if draw is None else _shuffled_by_class(labels, draw):
        folds[members] = torch.arange(len(members), device=labels.device) % count
    return folds


def cap_per_class(data: LabelledSet, cap: int, seed: int = 0) -> LabelledSet:
    """At most `cap` samples of each class, drawn at random (section 9.2's calibration set)."""
    if cap < 1:
        raise InputError(f"cap: got {cap}; at least one sample a class is needed")
    shuffled = _shuffled_by_class(data.labels, generator(seed, "cap"))
    return data.subset(torch.cat([members[:cap] for members in shuffled]).sort().values)


def long_tailed(data: LabelledSet, tail: float, seed: int = 0) -> LabelledSet:
    """The class of rank r, in a seeded order, keeps a share `tail`^(r/(C−1)) of its samples, and one at least."""
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
    """The mini-batch whose loss is differentiated twice; the whole set where it has no more than `samples`.

    Args:
        data: the pool, usually training images.
        samples: n.
        sampling: "natural" draws uniformly; "stratified" draws n/C of each class (a class with fewer gives all
            it has, and the others make up for it).
        seed: with `iteration`, fixes the draw.
        iteration: 0 for a batch given once (Algorithm 2's input), t for one drawn per iteration.
    """
    if samples < 1:
        raise InputError(f"hessian_samples: got {samples}; at least one sample is needed")
    draw = generator(seed, "hessian", iteration)
    if len(data) <= samples:
        return data
    if sampling == "natural":
        return data.subset(torch.randperm(len(data), generator=draw)[:samples].sort().values)
    shuffled = _shuffled_by_class(data.labels, draw)
    # Class by class in turn: the first sample of each, then the second of each, and so on.
    rank = torch.cat([torch.arange(len(members)) for members in shuffled])
    order = torch.cat(shuffled)[torch.argsort(rank, stable=True)]
    return data.subset(order[:samples].sort().values)


def _shuffled_by_class(labels: Tensor, draw: torch.Generator) -> list[Tensor]:
    """For each class that occurs, its positions in random order."""
    return [group[torch.randperm(len(group), generator=draw)] for group in _by_class(labels)]


def _by_class(labels: Tensor) -> list[Tensor]:
    """For each class that occurs, its positions in order."""
    return [(labels == label).nonzero().squeeze(1) for label in labels.unique()]
