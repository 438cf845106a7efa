"""compare: methods × repeated stratified splits × accuracy budgets, on one front."""

import copy
import time
from dataclasses import replace
from pathlib import Path

from torch import nn

from hessian_surgery.baselines.posthoc import FROM_LOGITS
from hessian_surgery.baselines.subject import Subject
from hessian_surgery.comparison.entries import FAMILIES, WHOLE, Entry, require_logits_only
from hessian_surgery.comparison.fronts import Fronts, weigh
from hessian_surgery.comparison.preparing import Patient, examine
from hessian_surgery.comparison.protocol import Protocol
from hessian_surgery.comparison.running import (
    Outcome,
    Trial,
    failed,
    run_swept,
    run_trained,
    run_trunk,
    run_whole,
    train,
)
from hessian_surgery.data.checks import require_images
from hessian_surgery.data.labelled import Data, as_labelled
from hessian_surgery.errors import InputError
from hessian_surgery.model.classifier import Classifier, as_classifier
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.paper.loop import Observer


def compare(
    model: nn.Module | Classifier,
    *,
    data: Data,
    training_data: Data,
    protocol: Protocol | None = None,
    config: SurgeryConfig | None = None,
    folder: str | Path | None = None,
    observer: Observer | None = None,
) -> Fronts:
    """Put methods on one front; the model is left as it was.

    Args:
        model: the trained classifier.
        data: labelled images that it was not trained on: each split fits on one half and reports on the other.
        training_data: where Hessian batches, class gradients and fine-tunes take their images.
        protocol: what is compared and how; all post-hoc methods on five splits by default.
        config: how spikes are sought, and what `loop` does.
        folder: keeps the state of trainings, so that a killed run goes on with them.
        observer: told about progress.
    """
    protocol, config, observer = protocol or Protocol(), config or SurgeryConfig(), observer or Observer()
    classifier = as_classifier(model)
    images = as_labelled(data)
    require_images(images.labels, images.classes, "data")
    images = images.resident(classifier.device)
    patient = Patient(classifier, images, as_labelled(training_data), config)
    halves, entries = protocol.halves(images), protocol.entries
    place = Path(folder) if folder else None
    outcomes: list[Outcome] = []
    base: Subject | None = None
    for trunk in dict.fromkeys(entry.trunk for entry in entries):
        members = [entry for entry in entries if entry.trunk == trunk]
        started = time.perf_counter()
        try:
            present = _after_training(patient, trunk, protocol, place, observer)
            trained = time.perf_counter() - started
            subject = examine(present, [name for entry in members for name in entry.methods], observer)
        except InputError as reason:
            if base is None:
                raise
            outcomes += [failed(entry, len(halves), len(images), str(reason)) for entry in members]
            continue
        subject = replace(subject, deepest=max(protocol.budgets))
        base = base or subject
        for entry in members:
            observer.remark(f"running {entry.name}")
            prepared = trained + _prepared(entry, subject)
            outcomes += _run(entry, Trial(subject, base, halves, protocol, observer, prepared), present, place)
    assert base is not None  # `nothing` has no training before it and comes first
    return weigh(base, outcomes, halves, protocol)


def compare_logits(subject: Subject, protocol: Protocol | None = None, observer: Observer | None = None) -> Fronts:
    """Put the methods that need nothing but logits on one front."""
    protocol, observer = protocol or Protocol(methods=FROM_LOGITS), observer or Observer()
    require_logits_only(protocol.entries)
    images = as_labelled((subject.logits, subject.labels), subject.classes)
    require_images(images.labels, images.classes, "logits")
    halves = protocol.halves(images)
    trial = Trial(subject, subject, halves, protocol, observer)
    runs = [run_swept(entry, trial) if entry.methods else run_trunk(entry, trial) for entry in protocol.entries]
    return weigh(subject, [outcome for run in runs for outcome in run], halves, protocol)


def _run(entry: Entry, trial: Trial, patient: Patient, folder: Path | None) -> list[Outcome]:
    """One entry on every split."""
    if entry.last:
        return run_trained(entry, trial, patient, folder)
    if not entry.methods:
        return run_trunk(entry, trial)
    if entry.methods[0] in WHOLE:
        return run_whole(entry, trial, patient)
    return run_swept(entry, trial)


def _prepared(entry: Entry, subject: Subject) -> float:
    """Seconds that the families of directions took which an entry uses."""
    families = {FAMILIES.get(name.partition(":")[0]) for name in entry.methods}
    return sum(seconds for name, seconds in subject.prepared.items() if name in families)


def _after_training(
    patient: Patient, trunk: str, protocol: Protocol, folder: Path | None, observer: Observer
) -> Patient:
    """The patient, or a copy of it that has been trained on."""
    if not trunk:
        return patient
    classifier = replace(patient.classifier, module=copy.deepcopy(patient.classifier.module))
    trained = replace(patient, classifier=classifier)
    train(trained, trunk, trunk, protocol, folder, observer)
    return trained
