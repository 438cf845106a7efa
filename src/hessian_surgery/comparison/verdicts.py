"""Verdicts on each split: what a user who had only that split would have been told."""

from collections import Counter

import torch
from torch import Tensor

from hessian_surgery.comparison.protocol import Split
from hessian_surgery.evidence.asked import Asked
from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.evidence.paired_tests import paired_tests
from hessian_surgery.evidence.promises import check_promises
from hessian_surgery.evidence.verdict import judge
from hessian_surgery.model.evaluation import Answers


def count_verdicts(
    before: Tensor, after: Tensor, labels: Tensor, classes: tuple[str, ...], splits: list[Split], asked: Asked
) -> dict[str, int]:
    """How many splits have each verdict on their held-out images.

    Args:
        before: the original model's predictions (N,).
        after: predictions of each split (S, N); −1 in a split that failed.
        labels: true classes (N,).
        classes: their names.
        splits: the splits.
        asked: what was aimed at, and the accuracy that may be given up.
    """
    found: Counter[str] = Counter()
    for split, predicted in zip(splits, after, strict=True):
        if int(predicted.min()) < 0:
            continue
        held = split.heldout
        # A verdict looks at predictions alone, so confidences are left out.
        nothing = torch.zeros(len(held))
        old, new = (Answers(answers[held], nothing, nothing) for answers in (before, predicted))
        images = BeforeAfter(classes, held, labels[held], old, new)
        tests = paired_tests(images)
        promises = check_promises(asked, images, tests.accuracy)
        found[judge(tests, len(held), asked, promises).outcome] += 1
    return dict(found)
