"""Running one entry of a comparison on every split."""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from hessian_surgery.baselines.choice import choose_within_floor
from hessian_surgery.baselines.edits import Edit, Start, apply_edits
from hessian_surgery.baselines.finetune import FINETUNES, finetune
from hessian_surgery.baselines.posthoc import Candidate
from hessian_surgery.baselines.subject import Subject
from hessian_surgery.comparison.entries import OPERATE, Entry, posthoc
from hessian_surgery.comparison.preparing import Patient
from hessian_surgery.comparison.protocol import Half, Protocol
from hessian_surgery.data.checks import require_images
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.rates import rates
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.operation.problem import prepare
from hessian_surgery.operation.rounds import run_planned
from hessian_surgery.paper.loop import Observer, run_loop


@dataclass(frozen=True)
class Trial:
    """What every entry is tried on.

    Attributes:
        subject: the model that methods are applied to.
        base: the model that accuracy counts from.
        halves: the splits.
        protocol: the budgets.
        observer: told about progress.
        prepared: seconds spent on the subject before.
    """

    subject: Subject
    base: Subject
    halves: list[Half]
    protocol: Protocol
    observer: Observer
    prepared: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """What an entry answers at one budget.

    Attributes:
        name: of the entry.
        budget: accuracy that it might give up on the calibration half, as a fraction; None where it has one point.
        predicted: the answer to each image (S, N), of each split; −1 in a split in which it failed or was not run.
        reasons: why it failed, by split.
        seconds: preparing once and fitting on one split, on average.
        edits: what it does to the model, as fitted on the first split; empty where that is no edit of the model as it
            was given, such as after a training.
    """

    name: str
    budget: float | None
    predicted: Tensor
    reasons: dict[int, str]
    seconds: float
    edits: tuple[Edit, ...] = ()


def run_swept(entry: Entry, trial: Trial) -> list[Outcome]:
    """A chain of post-hoc methods, fitted on each split's calibration half at each budget."""
    halves, budgets = trial.halves, trial.protocol.budgets
    predicted = {budget: torch.full((len(halves), len(trial.base.labels)), -1) for budget in budgets}
    reasons: dict[float, dict[int, str]] = {budget: {} for budget in budgets}
    edits: dict[float, tuple[Edit, ...]] = {}
    started = time.perf_counter()
    for i, half in enumerate(halves):
        for budget, done in carry_out(entry, trial, half, budgets).items():
            if isinstance(done, Start):
                predicted[budget][i] = done.logits.argmax(dim=1).cpu()
                if i == 0 and not entry.trunk:
                    edits[budget] = done.edits
            else:
                reasons[budget][i] = done
        trial.observer.stage(entry.name, i + 1, len(halves))
    seconds = trial.prepared + (time.perf_counter() - started) / len(halves)
    return [Outcome(entry.name, b, predicted[b], reasons[b], seconds, edits.get(b, ())) for b in budgets]


def carry_out(entry: Entry, trial: Trial, half: Half, budgets: tuple[float, ...]) -> dict[float, Start | str]:
    """A chain's post-hoc methods one after the other, each chosen on the calibration half above the floor.

    The floor is the accuracy of the base model there, less the budget; a chain that starts below it, after a
    training, must not lose more. Budgets that have led to the same place so far share the next fit.

    Returns:
        Where each budget leads, or why it leads nowhere.
    """
    subject, base = trial.subject, trial.base
    labels, classes = base.labels[half.chosen], len(base.classes)
    try:
        for part, argument in ((half.chosen, "calibration data"), (half.held, "held-out data")):
            require_images(base.labels[part], base.classes, argument)
        floor = min(rates(s.logits[half.chosen], labels, classes).accuracy for s in (base, subject))
    except InputError as reason:
        return dict.fromkeys(budgets, str(reason))
    present: dict[float, Start | str] = dict.fromkeys(budgets, Start.of(subject.logits))
    for name in entry.methods:
        fitted: dict[int, list[Candidate]] = {}
        for budget, start in present.items():
            if isinstance(start, str):
                continue
            try:
                if id(start) not in fitted:
                    fitted[id(start)] = posthoc(name)(subject, start, half.chosen)
                found = fitted[id(start)]
                best = found[choose_within_floor([c.rates for c in found], floor - budget)]
                present[budget] = best.end or start.after(best.edit, subject)
            except InputError as reason:
                present[budget] = str(reason)
    return present


def run_whole(entry: Entry, trial: Trial, patient: Patient) -> list[Outcome]:
    """A whole operation on each split's calibration half; one point, whose price is its own.

    `operate` has the headline budget; `loop` is Algorithm 2.
    """
    if planned := entry.methods == (OPERATE,):
        config = patient.config.as_planned(trial.protocol.headline)
    else:
        config = patient.config.as_loop()

    def answers(half: Half) -> Tensor:
        labelled = patient.images.subset(half.chosen)
        problem, _ = prepare(patient.classifier, patient.training, labelled, config, not planned, planned)
        with problem.space.keeping_weights():
            (run_planned if planned else run_loop)(problem, Observer())
            return compute_logits(patient.classifier, patient.images, patient.config.batch_size).argmax(dim=1)

    return [_one_point(entry, trial, answers)]


def run_trained(entry: Entry, trial: Trial, patient: Patient, folder: Path | None) -> list[Outcome]:
    """A chain that ends in a training: operated on the first split, then trained; judged on that split alone.

    The training sees no labelled image of the comparison, but what it starts from has seen the calibration half.
    """
    budget = trial.protocol.headline

    def answers(half: Half) -> Tensor:
        module = copy.deepcopy(patient.classifier.module)
        moved = replace(patient, classifier=replace(patient.classifier, module=module))
        done = carry_out(entry, trial, half, (budget,))[budget]
        if not isinstance(done, Start):
            raise InputError(done)
        apply_edits(module, trial.subject.head, done.edits)
        train(moved, entry.last, entry.name, trial.protocol, folder, trial.observer)
        return compute_logits(moved.classifier, moved.images, moved.config.batch_size).argmax(dim=1)

    return [_one_point(entry, replace(trial, halves=trial.halves[:1]), answers, len(trial.halves))]


def run_trunk(entry: Entry, trial: Trial) -> list[Outcome]:
    """The model as it is, or after a training: the same answers in every split."""
    answers = trial.subject.logits.argmax(dim=1).cpu()
    return [_one_point(entry, trial, lambda _: answers)]


def train(patient: Patient, name: str, chain: str, protocol: Protocol, folder: Path | None, observer: Observer) -> None:
    """Fine-tune a patient's model in place, keeping its state under the chain's name."""
    config = FINETUNES[name]
    head_epochs = round(protocol.epochs / config.epochs * config.head_epochs)
    config = replace(config, epochs=protocol.epochs, head_epochs=head_epochs, seed=protocol.seed)
    finetune(
        patient.classifier,
        patient.training,
        config,
        folder=folder / f"training-{chain}" if folder else None,
        progress=lambda done, total: observer.stage(chain, done, total),
    )


def failed(entry: Entry, splits: int, images: int, reason: str) -> Outcome:
    """An entry that could not be run on any split."""
    return Outcome(entry.name, None, torch.full((splits, images), -1), dict.fromkeys(range(splits), reason), 0.0)


def _one_point(entry: Entry, trial: Trial, answers: Callable[[Half], Tensor], splits: int | None = None) -> Outcome:
    """An entry that has one point; of `splits`, those beyond the trial's are left blank."""
    halves = trial.halves
    predicted, reasons = torch.full((splits or len(halves), len(trial.base.labels)), -1), dict[int, str]()
    started = time.perf_counter()
    for i, half in enumerate(halves):
        try:
            predicted[i] = answers(half)
        except InputError as reason:
            reasons[i] = str(reason)
        trial.observer.stage(entry.name, i + 1, len(halves))
    seconds = trial.prepared + (time.perf_counter() - started) / len(halves)
    return Outcome(entry.name, None, predicted, reasons, seconds)
