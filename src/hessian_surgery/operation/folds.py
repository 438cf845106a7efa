"""Folds: each image is judged by an operation that did not see it; none is held out for good."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError
from torch import Tensor

from hessian_surgery.data.checks import require_images
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.splits import stratified_folds
from hessian_surgery.errors import InputError, require
from hessian_surgery.evidence.metrics import class_accuracy
from hessian_surgery.model.evaluation import Answers, answer, answers_of, finite_logits
from hessian_surgery.model.parameters import Snapshot
from hessian_surgery.operation.algorithms import algorithm_of
from hessian_surgery.operation.driver import run_in_folder
from hessian_surgery.operation.feasibility import Infeasible
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.problem import Problem
from hessian_surgery.operation.recalibration import recalibrate
from hessian_surgery.operation.state_file import fingerprint, forget_state, state_folder
from hessian_surgery.seeding import generator
from hessian_surgery.weights.tensorfile import read_tensors, save_tensors

# Images of each class that an operation needs.
FEWEST = 2
ANSWERS = "answers.safetensors"
# Of one fold: the answers, those of the class bias if one was fitted, and whether a step was kept.
FoldFindings: TypeAlias = tuple[Answers, Answers | None, bool]


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


def answer_in_folds(
    problem: Problem[Any], before: Answers, fold_of: Tensor, start: Snapshot, kept: Kept, observer: Observer
) -> tuple[Answers, Answers | None, list[bool]]:
    """Operate once without each fold; the weights that are in the module now come back.

    Args:
        problem: what is operated on, with all images.
        before: the starting model's answers to them.
        fold_of: the fold of each image (n,).
        start: the starting weights.
        kept: where the state is kept.
        observer: told about progress.

    Returns:
        The answer to each image by the operation that did not see it, and by the class bias that
        was fitted there (None if none was); whether the operation without each fold kept a step.
    """
    after, simpler = (Answers(*(torch.empty_like(t) for t in vars(before).values())) for _ in range(2))
    moved = []
    fitted = True
    with problem.space.keeping_weights():
        problem.space.restore(start)
        identity = _identity(problem, fold_of, kept)
        folds = int(fold_of.max()) + 1
        for fold in range(folds):
            observer.fold(fold + 1, folds)
            problem.space.restore(start)
            unseen = (fold_of == fold).nonzero().squeeze(1)
            try:
                found = _one_fold(problem, before, unseen, _place(kept, fold), identity, kept, observer)
            except InputError as error:
                raise InputError(f"folds: without fold {fold + 1} of {folds}, {error}") from error
            answers, bias, kept_step = found
            for name, whole in vars(after).items():
                whole[unseen] = getattr(answers, name)
                getattr(simpler, name)[unseen] = getattr(bias or answers, name)
            fitted &= bias is not None
            moved.append(kept_step)
    return after, simpler if fitted else None, moved


def unlike_warning(moved: list[bool], delivered: bool) -> tuple[str, ...]:
    """Say that some folds' operations kept a step where the delivered one did not, or vice versa.

    Args:
        moved: whether the operation without each fold kept a step.
        delivered: whether the delivered one did.
    """
    unlike = sum(kept != delivered for kept in moved)
    if not unlike:
        return ()
    what = "no step, but the delivered one did" if delivered else "a step, but the delivered one did not"
    return (f"{unlike} of {len(moved)} operations of the folds kept {what}: the figures mix operations that differ",)


def _one_fold(
    problem: Problem[Any],
    before: Answers,
    unseen: Tensor,
    place: Path | None,
    identity: str,
    kept: Kept,
    observer: Observer,
) -> FoldFindings:
    """Operate without the images at `unseen`; answer these. A finished fold is not done again."""
    known = _load(place, identity) if place and kept.resume else None
    if known is not None:
        return known
    data = problem.calibration_data
    seen = torch.ones(len(data), dtype=torch.bool)
    seen[unseen] = False
    rest = seen.nonzero().squeeze(1)
    base = class_accuracy(before.predicted[rest], data.labels[rest], len(data.classes))
    started = before.predicted[rest]
    part = replace(problem, calibration_data=data.subset(rest), base=base, started=started, with_front=False)
    shown = data.subset(unseen)
    logits = finite_logits(problem.classifier, shown, problem.batch_size)
    bias: Answers | None = answers_of(logits, shown.labels)
    try:
        records, ending = run_in_folder(algorithm_of(problem.config), part, place, kept.resume, observer)
        moved = any(record.accepted for record in records)
        recalibrate(part)
        shifts = ending.biases
        bias = None if shifts is None else answers_of(logits + logits.new_tensor(shifts), shown.labels)
        problem.space.round_to(kept.stored_as or {})
    except Infeasible:
        # On these images the targets are out of reach: this operation would have changed nothing.
        moved = False
    answers = answer(problem.classifier, shown, problem.batch_size)
    if place is not None:
        tensors = vars(answers) | {f"bias.{name}": t for name, t in (vars(bias) if bias else {}).items()}
        save_tensors(place / ANSWERS, tensors, {"identity": identity, "moved": "yes" if moved else "no"})
        forget_state(place)
    return answers, bias, moved


def _load(place: Path, identity: str) -> FoldFindings | None:
    """The answers of a finished fold; None if it is not finished."""
    path = place / ANSWERS
    if not path.exists():
        return None
    try:
        tensors, metadata = read_tensors(path)
        if metadata["identity"] != identity:
            raise InputError(f"resume: {place} belongs to a run with other options, weights or images; give those")
        parts = [
            {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith("bias.") == bool(prefix)}
            for prefix in ("", "bias.")
        ]
        return Answers(**parts[0]), Answers(**parts[1]) if parts[1] else None, metadata["moved"] == "yes"
    except (SafetensorError, OSError, KeyError, TypeError) as error:
        raise InputError(f"resume: {path} cannot be read: {error}") from error


def _identity(problem: Problem[Any], fold_of: Tensor, kept: Kept) -> str:
    """What the answers of a fold depend on; the weights must be the starting ones."""
    if kept.folder is None:
        return ""
    dtypes = [(name, str(dtype)) for name, dtype in sorted((kept.stored_as or {}).items())]
    return sha256(f"{fingerprint(problem)} {fold_of.tolist()} {dtypes}".encode()).hexdigest()


def _place(kept: Kept, fold: int) -> Path | None:
    return None if kept.folder is None else state_folder(kept.folder) / f"fold-{fold + 1}"
