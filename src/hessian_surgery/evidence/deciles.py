"""Deciles: many classes in ten groups, weakest first, and what became of each group.

The groups are formed on the calibration images and reported on the held-out ones. If the same
images did both, the weakest group would hold the unlucky classes, and seem weaker than it is.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.evidence.difference import Difference
from hessian_surgery.evidence.metrics import class_accuracy, wilson_interval
from hessian_surgery.evidence.promises import change_interval
from hessian_surgery.evidence.resampled_pairs import pair_counts
from hessian_surgery.short_repr import short_repr
from hessian_surgery.types import Array

# With more classes than this, reports show groups and the classes that changed most.
MANY_CLASSES = 40
GROUPS = 10
# Of many classes, so many that gained and so many that lost are listed.
MOST = 10


@dataclass(frozen=True)
class ClassGroup:
    """A tenth of the classes. Accuracies are means of class accuracies, as fractions.

    Attributes:
        group: its number; 1 holds the weakest classes.
        members: numbers of its classes.
        formed: lowest and highest accuracy of a member on the calibration images, before.
        before: accuracy on the held-out images, before.
        before_interval: its 95 % interval.
        after: the same after the operation.
        after_interval: its 95 % interval.
        change: after minus before.

    Example:
        >>> outcome.findings.deciles  # of more than forty classes, ten groups
        ()
    """

    group: int
    members: tuple[int, ...]
    formed: tuple[float, float]
    before: float
    before_interval: tuple[float, float]
    after: float
    after_interval: tuple[float, float]
    change: Difference

    __repr__ = short_repr

    def as_dict(self) -> dict[str, Any]:
        """The form that `result.json` holds."""
        return asdict(self)


def form_groups(per_class: Array) -> list[Array]:
    """Numbers of the classes in ten groups of nearly one size, by accuracy (C,), lowest first."""
    return [np.sort(part) for part in np.array_split(np.argsort(per_class, kind="stable"), GROUPS)]


def deciles(calibration: BeforeAfter, heldout: BeforeAfter) -> tuple[ClassGroup, ...]:
    """Group the classes by the calibration images, and measure the groups on the held-out ones.

    The mean accuracy of classes with n_j images is as exact as that of C² / Σ 1/n_j images. From so
    many, Wilson's interval and Bonett and Price's are taken. In simulations they hold the truth in
    95 cases of 100 or more.
    """
    formed = class_accuracy(calibration.before.predicted, calibration.labels, len(heldout.classes))
    return group_changes(formed, pair_counts(heldout))


def group_changes(formed: Array, kinds: Array) -> tuple[ClassGroup, ...]:
    """Group the classes by accuracies (C,), and measure the groups from `pair_counts` (C, 4)."""
    return tuple(
        _measure(number, members, formed[members], kinds[members])
        for number, members in enumerate(form_groups(formed), 1)
    )


def _measure(number: int, members: Array, formed: Array, kinds: Array) -> ClassGroup:
    """A group from the calibration accuracies (M,) and the pair counts (M, 4) of its members."""
    count = kinds.sum(axis=1)
    images = len(count) ** 2 / float((1 / count).sum())
    both, lost, gained, _ = (float(share) for share in (kinds / count[:, None]).mean(axis=0))
    before, after = (min(1.0, both + lost), min(1.0, both + gained))
    interval = change_interval(gained * images, lost * images, images, 1.96)
    return ClassGroup(
        group=number,
        members=tuple(members.tolist()),
        formed=(float(formed.min()), float(formed.max())),
        before=before,
        before_interval=wilson_interval(before * images, images),
        after=after,
        after_interval=wilson_interval(after * images, images),
        change=Difference(after - before, interval),
    )


def most_changed(before: list[float], after: list[float], most: int) -> tuple[list[int], list[int]]:
    """The classes that gained most and those that lost most, at most `most` of each."""
    change = np.array(after) - np.array(before)
    order = np.argsort(-change, kind="stable")
    gained = [j for j in order[:most].tolist() if change[j] > 0]
    return gained, [j for j in order[::-1][:most].tolist() if change[j] < 0]


def shown_classes(before: list[float], after: list[float]) -> list[int]:
    """The classes to list: all, weakest first; of many, those that gained and that lost most."""
    if len(before) <= MANY_CLASSES:
        return sorted(range(len(before)), key=lambda j: before[j])
    gained, lost = most_changed(before, after, MOST)
    return gained + lost[::-1]


def left_out(shown: int, classes: int) -> str:
    """Say which classes were listed, if not all were."""
    return f"{shown} of {classes:,} classes: at most {MOST} that gained most and {MOST} that lost most."
