"""Images whose classes are known exactly: each is a vector of counts.

An image is the counts of 30 symbols drawn from 40 categories; each of ten classes draws from a
distribution of its own. So the Bayes rule is known (it is linear in the counts), fresh images cost
nothing, and the true class accuracies of any net can be measured as precisely as one likes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import torch
from torch import nn

import hessian_surgery as hs
from hessian_surgery.types import Array

CLASSES = 10
CATEGORIES = 40
SYMBOLS = 30
NAMES = tuple(f"class {j}" for j in range(CLASSES))
# How far class distributions are from flat (a wave over the categories, and noise): the Bayes rule
# is right on 85 % of images, and most of its errors are neighbours.
WAVE = 0.5
NOISE = 0.5
# Unequal problems: by what a class's log-shares are multiplied (1 ± SPREAD), the noise added to
# them, and how far a net is from the Bayes rule. True σ is then about 6 pp, of which 4 pp are the
# Bayes rule's own: these cost accuracy to mend.
SPREAD = 0.35
OWN_NOISE = 0.1
BIAS_ERROR = 0.2
WEIGHT_ERROR = 0.05
# Skewed problems: how often each class is drawn, as in HAM10000.
SKEW = (600, 110, 100, 60, 50, 35, 25, 20, 15, 12)
# Fresh images of a class that the truth is measured on.
TRUTH = 20_000


@dataclass(frozen=True)
class Problem:
    """Ten classes, and a net that tells them apart.

    Attributes:
        log_shares: log-probability of each category in each class (C, D).
        weight: of the net's head (C, D): log-probabilities, or near them.
        bias: of the net's head (C,).
        equal: whether each class is the first one, rotated by D / C categories; the net too.
        often: how often each class (C,) is drawn, where 1 is the mean.
    """

    log_shares: Array
    weight: Array
    bias: Array
    equal: bool
    often: Array = field(default_factory=lambda: np.ones(CLASSES))

    def draw(self, per_class: int, seed: Sequence[int]) -> hs.LabelledSet:
        """Fresh images, `per_class` of a class on average."""
        draw = np.random.default_rng(seed)
        images = np.rint(per_class * self.often).astype(int)
        return _labelled([_counts(np.exp(row), n, draw) for row, n in zip(self.log_shares, images, strict=True)])

    def truth(self, seed: Sequence[int]) -> hs.LabelledSet:
        """The images that define the truth.

        There are equally many of each class. Equal classes get the same images, rotated, so that a
        symmetric net has a true σ of 0.
        """
        if not self.equal:
            return replace(self, often=np.ones(CLASSES)).draw(TRUTH, seed)
        first = _counts(np.exp(self.log_shares[0]), TRUTH, np.random.default_rng(seed))
        return _labelled([np.roll(first, j * CATEGORIES // CLASSES, axis=1) for j in range(CLASSES)])

    def net(self, kind: str) -> nn.Sequential:
        """The net: `linear`, or `hidden` with a layer before the head that starts as the identity.

        Counts are never negative, so the ReLU keeps them all at first.
        """
        head = _linear(self.weight, self.bias)
        if kind == "linear":
            return nn.Sequential(head)
        return nn.Sequential(_linear(np.eye(CATEGORIES), np.zeros(CATEGORIES)), nn.ReLU(), head)


@cache
def equal_problem() -> Problem:
    """Ten classes that are equally hard, and the Bayes rule."""
    noise = NOISE * np.random.default_rng(0).normal(size=CATEGORIES)
    first = WAVE * np.cos(2 * np.pi * np.arange(CATEGORIES) / CATEGORIES) + noise
    rows = _normalised(np.stack([np.roll(first, j * CATEGORIES // CLASSES) for j in range(CLASSES)]))
    return Problem(rows, rows, np.zeros(CLASSES), equal=True)


def unequal_problem(seed: Sequence[int]) -> Problem:
    """Classes that are not equally hard, and a net that is near their Bayes rule."""
    draw = np.random.default_rng(seed)
    clearness = draw.uniform(1 - SPREAD, 1 + SPREAD, size=(CLASSES, 1))
    own = OWN_NOISE * draw.normal(size=(CLASSES, CATEGORIES))
    rows = _normalised(clearness * equal_problem().log_shares + own)
    weight = rows + WEIGHT_ERROR * draw.normal(size=rows.shape)
    return Problem(rows, weight, BIAS_ERROR * draw.normal(size=CLASSES), equal=False)


def skewed_problem(seed: Sequence[int]) -> Problem:
    """The same with a few frequent and many rare classes, which the net knows about.

    Any lift of a rare class costs accuracy.
    """
    found = unequal_problem(seed)
    often = np.random.default_rng([*seed, 1]).permutation(SKEW) / np.mean(SKEW)
    return replace(found, bias=found.bias + np.log(often), often=often)


def class_accuracies(net: nn.Module, data: hs.LabelledSet) -> Array:
    """The accuracy of a net on each class (C,)."""
    with torch.no_grad():
        right = (net(data.inputs()).argmax(dim=1) == data.labels).double()
    return (torch.bincount(data.labels, weights=right) / torch.bincount(data.labels)).numpy()


def _counts(shares: Array, images: int, draw: np.random.Generator) -> Array:
    """Counts (images, D) of symbols drawn from a distribution (D,)."""
    edges = np.cumsum(shares)[:-1]
    symbols = np.searchsorted(edges, draw.random((images, SYMBOLS)))
    cells = (np.arange(images)[:, None] * CATEGORIES + symbols).ravel()
    return np.bincount(cells, minlength=images * CATEGORIES).reshape(images, CATEGORIES)


def _labelled(counts: Sequence[Array]) -> hs.LabelledSet:
    """The images of each class (n, D) as one set."""
    labels = torch.arange(CLASSES).repeat_interleave(torch.tensor([len(images) for images in counts]))
    return hs.as_labelled((torch.tensor(np.concatenate(counts), dtype=torch.float32), labels), classes=NAMES)


def _normalised(rows: Array) -> Array:
    """Log-probabilities from unnormalised ones, by row."""
    return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


def _linear(weight: Array, bias: Array) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))
    return layer
