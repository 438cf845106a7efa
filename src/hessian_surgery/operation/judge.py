"""The images that an operation is judged on: held-out ones, or folds of the calibration images."""

from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

from torch import Tensor

from hessian_surgery.data.checks import require_images
from hessian_surgery.data.class_names import require_same_names
from hessian_surgery.data.labelled import Data, LabelledSet
from hessian_surgery.errors import InputError, require
from hessian_surgery.model.evaluation import Answers, answers_of, finite_logits
from hessian_surgery.operation.folds import divide
from hessian_surgery.operation.leak_check import LeakCheck, check_leaks
from hessian_surgery.operation.problem import Inputs, Problem
from hessian_surgery.operation.recalibration import check_biases, check_recalibration
from hessian_surgery.types import Progress


@dataclass(frozen=True)
class CheckedJudge:
    """The images that judge, checked against the others; see `Judge`."""

    heldout: LabelledSet | None
    fold_of: Tensor | None
    leaks: LeakCheck


def check_judge(
    inputs: Inputs[Any],
    training: LabelledSet,
    heldout: LabelledSet | None,
    folds: int | None,
    progress: Progress | None = None,
) -> CheckedJudge:
    """Check the images that judge against the others; divide them into folds if so asked.

    `progress` is told of held-out samples that have been read.
    """
    check_recalibration(inputs)
    check_biases(inputs)
    if inputs.config.calibrate_on_training and folds is not None:
        raise InputError(f"folds: got {folds}, but the calibration images are training images; give heldout_data")
    heldout = None if heldout is None else _heldout(inputs, heldout, progress)
    leaks = check_leaks(inputs, training, heldout)
    fold_of = None
    if heldout is None:
        assert folds is not None  # `require_one` has seen to it
        fold_of = divide(inputs.calibration_data, folds, leaks.firsts, inputs.config.seed)
    return CheckedJudge(heldout, fold_of, leaks)


@dataclass(frozen=True)
class Judge:
    """The images that an operation is judged on.

    Attributes:
        heldout: the held-out images; None if the calibration images are divided into folds.
        before: the starting model's answers to the images that judge.
        logits: its logits (N, C) of the held-out images; None with folds.
        fold_of: the fold (n,) of each calibration image, from 0; None with held-out images.
        leaks: the images that the parts of the data share.
    """

    heldout: LabelledSet | None
    before: Answers
    logits: Tensor | None
    fold_of: Tensor | None
    leaks: LeakCheck

    @property
    def folds(self) -> int | None:
        """How many folds there are; None with held-out images."""
        return None if self.fold_of is None else int(self.fold_of.max()) + 1


def measure_judge(problem: Problem[Any], before: Answers, checked: CheckedJudge) -> Judge:
    """The images that judge, with the starting model's answers to them."""
    heldout = checked.heldout
    if heldout is None:
        return Judge(None, before, None, checked.fold_of, checked.leaks)
    logits = finite_logits(problem.classifier, heldout, problem.batch_size)
    return Judge(heldout, answers_of(logits, heldout.labels), logits, None, checked.leaks)


def require_one(heldout_data: Data | None, folds: int | None) -> None:
    """Refuse held-out data and folds together, and neither."""
    if heldout_data is not None and folds is not None:
        raise InputError(f"folds: got {folds}, and heldout_data as well; give one of the two")
    if heldout_data is None and folds is None:
        raise InputError("heldout_data: missing; give held-out images, or folds=5 to judge without them")
    whole = isinstance(folds, Integral) and not isinstance(folds, bool)
    require(folds is None or (whole and folds >= 2), "folds", folds, "a whole number, at least 2")


def _heldout(inputs: Inputs[Any], heldout: LabelledSet, progress: Progress | None) -> LabelledSet:
    """The held-out images, checked."""
    known = inputs.calibration_data.classes
    require_same_names(known, heldout.classes, "heldout_data")
    heldout = replace(heldout, classes=known)
    require_images(heldout.labels, known, "heldout_data")
    return heldout.resident(inputs.classifier.device, progress)
