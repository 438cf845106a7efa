"""Groups of classes that share a direction: with many classes, each alone has too few images."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.sparse import coo_array
from torch import Tensor

from hessian_surgery.directions.family import Probe
from hessian_surgery.evidence.accuracies import TEMPERATURE, logit_unit
from hessian_surgery.types import Array

# How many groups there are at most, beside classes that are to be alone. With no more classes than
# that, each is a group of its own.
GROUPS = 20
# Confusions below this share are all the same.
RARE = 1e-4


@dataclass(frozen=True)
class ClassGroups:
    """Which classes share a direction.

    Attributes:
        names: name of each group (G,).
        members: the classes of each group.
    """

    names: tuple[str, ...]
    members: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.names)


def count_groups(classes: int, alone: int = 0) -> int:
    """How many groups there are at most, with so many classes that are to be alone."""
    return min(classes, GROUPS + alone)


def find_groups(probe: Probe, alone: Sequence[str] = ()) -> ClassGroups:
    """Group the classes by how often the present weights confuse the probe's images."""
    leading = probe.logits.gather(1, probe.outputs)
    return group_classes(leading, probe.outputs, probe.data.labels, probe.data.classes, alone)


def group_classes(
    logits: Tensor, outputs: Tensor, labels: Tensor, classes: Sequence[str], alone: Sequence[str] = ()
) -> ClassGroups:
    """Group classes by how often they are confused (average linkage).

    Args:
        logits: the leading logits of each image (n, L).
        outputs: which outputs these are (n, L), the true class first.
        labels: the true class of each image (n,).
        classes: the C class names.
        alone: classes that get a group of their own.
    """
    if len(classes) <= GROUPS + len(alone):
        return ClassGroups(tuple(classes), tuple((i,) for i in range(len(classes))))
    single = [i for i, name in enumerate(classes) if name in set(alone)]
    rest = np.setdiff1d(np.arange(len(classes)), single)
    number = _cluster(_confusion(logits, outputs, labels, len(classes))[np.ix_(rest, rest)], GROUPS)
    found: list[tuple[int, ...]] = [(i,) for i in single]
    found += [tuple(map(int, rest[number == i])) for i in np.unique(number)]
    return ClassGroups(tuple(_name(members, classes) for members in found), tuple(found))


def _confusion(logits: Tensor, outputs: Tensor, labels: Tensor, classes: int) -> Array:
    """Mean soft confusion of each pair of classes (C, C), symmetric."""
    share = torch.softmax(logits / (TEMPERATURE * logit_unit(logits)), dim=1).double().cpu().numpy()
    answers = outputs.cpu().numpy()
    truth = np.broadcast_to(labels.cpu().numpy()[:, None], answers.shape)
    known = answers < classes
    matrix = coo_array((share[known], (truth[known], answers[known])), (classes, classes)).toarray()
    matrix /= np.maximum(1, np.bincount(labels.cpu().numpy(), minlength=classes))[:, None]
    both: Array = (matrix + matrix.T) / 2
    return both


def _cluster(confusion: Array, count: int) -> NDArray[np.int64]:
    """The group of each class (C,), from the confusion of each pair (C, C)."""
    distance = -np.log(confusion[np.triu_indices(len(confusion), 1)] + RARE)
    # Not `fcluster`, which makes fewer groups where distances are equal.
    return np.asarray(cut_tree(linkage(distance, "average"), count)[:, 0], dtype=np.int64)


def _name(members: tuple[int, ...], classes: Sequence[str]) -> str:
    first = classes[members[0]]
    return first if len(members) == 1 else f"{first} and {len(members) - 1} more"
