"""What an entry of a comparison is run on, and what it gives."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.baselines.model_edits import Edit
from hessian_surgery.baselines.outputs import ModelOutputs
from hessian_surgery.comparison.kept_splits import KeptSplits
from hessian_surgery.comparison.protocol import Protocol, Split
from hessian_surgery.data.checks import require_images
from hessian_surgery.evidence.accuracies import rates
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.operation.goal import Goal
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.starting_goal import starting_goal


@dataclass(frozen=True)
class RunContext:
    """What an entry is run on.

    Attributes:
        outputs: outputs of the model that the methods start from.
        base: outputs of the original model; budgets count from its accuracy.
        splits: the splits.
        protocol: the protocol.
        observer: told about progress.
        seconds_before: seconds already spent on the training and directions that the entry uses.
        terms: the goal and limits that every method is held to; its budget plays no part.
        kept: where splits that are done are kept, by the entry's name; not every entry's are.
    """

    outputs: ModelOutputs
    base: ModelOutputs
    splits: list[Split]
    protocol: Protocol
    observer: Observer
    seconds_before: float = 0.0
    terms: SurgeryConfig = field(default_factory=SurgeryConfig)
    kept: Mapping[str, KeptSplits] = field(default_factory=dict)

    def left(self, name: str) -> list[Split]:
        """The splits that an entry is still to be run on."""
        return self.splits[len(self.kept[name].done) if name in self.kept else 0 :]

    def goal(self, split: Split) -> Goal:
        """What methods aim at on a split's calibration images, against the original model.

        After a training, a limit counts from where the class is then, if that is lower. The goal's
        floor is likewise the lower of the two models' accuracies.

        Raises:
            InputError: a class has no image.
        """
        base = self.base
        for part, argument in ((split.calibration, "calibration data"), (split.heldout, "held-out data")):
            require_images(base.labels[part], base.classes, argument)
        labels = base.labels[split.calibration]
        first, now = (rates(o.logits[split.calibration], labels, len(base.classes)) for o in (base, self.outputs))
        count = torch.bincount(labels, minlength=len(base.classes)).cpu().numpy()
        goal = starting_goal(self.terms, first.per_class, count, base.classes)
        lost = np.maximum(0.0, first.per_class - now.per_class)
        return replace(goal, limits=goal.limits - lost, floor=min(first.accuracy, now.accuracy))


@dataclass(frozen=True)
class EntryResult:
    """What an entry predicts at one budget.

    Attributes:
        name: the entry's name.
        budget: accuracy that it may give up on the calibration images, as a fraction; None for an
            entry that has a single point.
        predicted: predictions for all images, of each split (S, N); −1 in a split that failed or
            was not run.
        reasons: why it failed, by split.
        seconds: seconds to prepare once and to fit one split, on average.
        edits: its edits of the original model, as fitted on the first split; empty if there are
            none, as after a training.
    """

    name: str
    budget: float | None
    predicted: Tensor
    reasons: dict[int, str]
    seconds: float
    edits: tuple[Edit, ...] = ()
