"""Folds: an operation without each fold, judged on it; the delivered step is their mean.

No image is held out for good. The mean of the steps does about what the steps do on average, so
what is measured on the folds is true of the delivered model. One more operation on all images
would mostly gain more than was measured, and sometimes less.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hessian_surgery.data.checks import require_images
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.splits import stratified_folds
from hessian_surgery.errors import InputError, require
from hessian_surgery.evidence.metrics import class_accuracy
from hessian_surgery.model.evaluation import Answers, answer, answers_of
from hessian_surgery.model.parameters import Snapshot
from hessian_surgery.operation.algorithms import algorithm_of
from hessian_surgery.operation.driver import run_in_folder
from hessian_surgery.operation.feasibility import Infeasible
from hessian_surgery.operation.history import history_hash, load_history
from hessian_surgery.operation.iteration_record import IterationRecord
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.problem import Problem
from hessian_surgery.operation.recalibration import recalibrate
from hessian_surgery.operation.state_file import FOUND, fingerprint, forget_state, passes_metadata, state_folder
from hessian_surgery.seeding import generator
from hessian_surgery.stored import blamed_on
from hessian_surgery.weights.tensorfile import read_checked, save_checked

# Images of each class that an operation needs.
FEWEST = 2


@dataclass(frozen=True)
class Kept:
    """Where the operations of the folds keep their state, and what they are.

    Attributes:
        folder: the run folder; None keeps nothing.
        resume: whether to go on from what is there.
        stored_as: dtypes, by tensor name, that patched weights are rounded to; None rounds nothing.
    """

    folder: Path | None
    resume: bool
    stored_as: Mapping[str, torch.dtype] | None


def check_folds(data: LabelledSet, folds: int) -> None:
    """Refuse fewer than two folds, and classes with fewer images than there are folds."""
    require(folds >= 2, "folds", folds, "at least 2")
    require_images(data.labels, data.classes, f"calibration_data, in {folds} folds", at_least=max(folds, 2 * FEWEST))


def divide(data: LabelledSet, folds: int, firsts: list[int], seed: int) -> Tensor:
    """The fold (n,), from 0, of each image: stratified, and copies of an image in one fold.

    Args:
        data: the images.
        folds: how many.
        firsts: for each image the position of the first one with the same inputs.
        seed: fixes the draw.
    """
    check_folds(data, folds)
    fold_of = stratified_folds(data.labels, folds, generator(seed, "folds"))[torch.tensor(firsts)]
    for fold in range(folds):
        rest = data.labels[fold_of != fold]
        require_images(rest, data.classes, f"calibration_data, without fold {fold + 1} of {folds}", at_least=FEWEST)
        if len(rest) == len(data):
            raise InputError(f"folds: got {folds}, but too many images are copies of others; leave out the copies")
    return fold_of


@dataclass(frozen=True)
class Folded:
    """What the operations of all folds found.

    Attributes:
        answers: to each image, by the operation that did not see it.
        bias: the same by the class bias that was fitted there; None if none was.
        records: of all iterations, fold by fold.
        step: the mean of the operations' steps (p,); one that kept nothing counts as a step of 0.
        moved: how many operations kept a step.
        overconfidence: that of the delivered model (see `Ending`), whose step is the mean of all.
    """

    answers: Answers
    bias: Answers | None
    records: tuple[IterationRecord, ...]
    step: Tensor
    moved: int
    overconfidence: float


@dataclass(frozen=True)
class _Fold:
    """What the operation without one fold found; see `Folded`."""

    answers: Answers
    bias: Answers | None
    records: Sequence[IterationRecord]
    step: Tensor
    overconfidence: float = 1.0


def operate_in_folds(
    problem: Problem[Any], before: Answers, fold_of: Tensor, start: Snapshot, kept: Kept, observer: Observer
) -> Folded:
    """Operate once without each fold; leave the starting weights plus the mean step in the module.

    Args:
        problem: what is operated on, with all images.
        before: the starting model's answers to them.
        fold_of: the fold of each image (n,).
        start: the starting weights, which are in the module now.
        kept: where the state is kept.
        observer: told about progress.

    Raises:
        Infeasible: the targets are out of reach of every operation.
    """
    space = problem.space
    identity = _identity(problem, fold_of, kept)
    folds = int(fold_of.max()) + 1
    after, simpler = (_some(before, torch.arange(len(fold_of))) for _ in range(2))
    mean = torch.zeros(space.dimension, dtype=space.dtype, device=space.device)
    records: list[IterationRecord] = []
    ratios: list[float] = []
    fitted = True
    out_of_reach: Infeasible | None = None
    for fold in range(folds):
        observer.fold(fold + 1, folds)
        space.restore(start)
        unseen = (fold_of == fold).nonzero().squeeze(1)
        try:
            found = _one_fold(problem, before, unseen, _place(kept, fold), identity, kept, observer)
        except Infeasible as error:
            # On these images the targets are out of reach: this operation changes nothing.
            out_of_reach = error
            same = _some(before, unseen)
            found = _Fold(same, same, (), torch.zeros_like(mean))
        except InputError as error:
            raise InputError(f"folds: without fold {fold + 1} of {folds}, {error}") from error
        _fill_in(after, found.answers, unseen)
        _fill_in(simpler, found.bias or found.answers, unseen)
        fitted &= found.bias is not None
        mean += found.step / folds
        ratios.append(found.overconfidence)
        records += [replace(record, fold=fold + 1) for record in found.records]
    if out_of_reach is not None and not records:
        raise out_of_reach
    space.restore(start)
    space.perturb(mean)
    moved = {record.fold for record in records if record.accepted}
    return Folded(after, simpler if fitted else None, tuple(records), mean, len(moved), _of_the_mean(ratios))


def _of_the_mean(ratios: Sequence[float]) -> float:
    """The overconfidence of the mean step: each image was in all operations but one."""
    return math.prod(ratios) ** ((len(ratios) - 1) / len(ratios) ** 2)


def _fill_in(whole: Answers, some: Answers, positions: Tensor) -> None:
    """Write the answers to some images where they belong among all."""
    for name, tensor in vars(whole).items():
        tensor[positions] = getattr(some, name)


def folds_ended(moved: int, folds: int) -> str:
    """What the operations of the folds did, in one sentence.

    Args:
        moved: how many kept a step.
        folds: of how many.
    """
    if not moved:
        return f"Nothing was done: none of {folds} operations, each without one fold, kept a step."
    how = f"Each of {moved}" if moved == folds else f"{moved} of {folds}"
    return f"{how} operations, each without one fold, kept a step; the delivered step is the mean of all."


def _one_fold(
    problem: Problem[Any],
    before: Answers,
    unseen: Tensor,
    place: Path | None,
    identity: str,
    kept: Kept,
    observer: Observer,
) -> _Fold:
    """Operate without the images at `unseen`; answer these. A finished fold is not done again."""
    algorithm = algorithm_of(problem.config)
    known = _load(place, identity, algorithm.record) if place and kept.resume else None
    if known is not None:
        return known
    data = problem.calibration_data
    space = problem.space
    start = space.flatten(space.parameters)
    seen = torch.ones(len(data), dtype=torch.bool)
    seen[unseen] = False
    rest = seen.nonzero().squeeze(1)
    base = class_accuracy(before.predicted[rest], data.labels[rest], len(data.classes))
    part = replace(
        problem, calibration_data=data.subset(rest), base=base, logits=problem.logits[rest], with_front=False
    )
    shown = data.subset(unseen)
    logits = problem.logits[unseen]
    records, ending = run_in_folder(algorithm, part, place, kept.resume, observer)
    shifts = ending.biases
    bias = None if shifts is None else answers_of(logits + logits.new_tensor(shifts), shown.labels)
    step = space.flatten(space.parameters) - start
    observer.stage("report", 0, 1)
    recalibrate(part, ending.overconfidence)
    space.round_to(kept.stored_as or {})
    answers = answer(problem.classifier, shown, problem.batch_size)
    observer.stage("report", 1, 1)
    if place is not None:
        said = {"identity": identity, "iterations": str(len(records)), "history": history_hash(records)}
        said["overconfidence"] = repr(ending.overconfidence)
        said |= passes_metadata(problem)
        of_bias = {f"bias.{name}": t for name, t in (vars(bias) if bias else {}).items()}
        save_checked(place / FOUND, vars(answers) | of_bias | {"step": step}, said)
        forget_state(place)
    return _Fold(answers, bias, records, step, ending.overconfidence)


def _load(place: Path, identity: str, kind: type[IterationRecord]) -> _Fold | None:
    """What a finished fold found; None if it is not finished."""
    path = place / FOUND
    if not path.exists():
        return None
    with blamed_on(f"resume: {path}"):
        tensors, metadata = read_checked(path)
        if metadata["identity"] != identity:
            raise InputError(f"resume: {place} belongs to a run with other options, weights or images; give those")
        step = tensors.pop("step")
        of_bias = {name: tensors.pop(f"bias.{name}") for name in list(tensors) if f"bias.{name}" in tensors}
        bias = Answers(**of_bias) if of_bias else None
        records = load_history(place, int(metadata["iterations"]), kind, metadata["history"])
        return _Fold(Answers(**tensors), bias, records, step, float(metadata.get("overconfidence", 1)))


def _some(answers: Answers, positions: Tensor) -> Answers:
    """The answers to some images."""
    return Answers(*(tensor[positions] for tensor in vars(answers).values()))


def _identity(problem: Problem[Any], fold_of: Tensor, kept: Kept) -> str:
    """What the answers of a fold depend on; the weights must be the starting ones."""
    if kept.folder is None:
        return ""
    dtypes = [(name, str(dtype)) for name, dtype in sorted((kept.stored_as or {}).items())]
    return sha256(f"{fingerprint(problem)} {fold_of.tolist()} {dtypes}".encode()).hexdigest()


def _place(kept: Kept, fold: int) -> Path | None:
    return None if kept.folder is None else state_folder(kept.folder) / f"fold-{fold + 1}"
