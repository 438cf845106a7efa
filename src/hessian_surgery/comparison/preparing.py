"""From a model and its images to a `Subject`: logits, features and logit changes, each computed once."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch

from hessian_surgery.classifier import Classifier
from hessian_surgery.comparison.entries import FAMILIES, wanted_count
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.directions import (
    Directions,
    class_gradients,
    logit_change,
    random_directions,
    spike_directions,
)
from hessian_surgery.evaluation import compute_logits
from hessian_surgery.models.head import compute_features, find_head
from hessian_surgery.rivals.subject import Subject
from hessian_surgery.surgery.config import SurgeryConfig
from hessian_surgery.surgery.loop import Observer, Problem, curvature, find_spikes
from hessian_surgery.surgery.prepare import prepare


@dataclass(frozen=True)
class Patient:
    """A model with all of its images.

    Attributes:
        classifier: the model, at the weights that are compared.
        images: all labelled images, to be split again and again.
        training: the images that it was trained on.
        config: how spikes are sought.
    """

    classifier: Classifier
    images: LabelledSet
    training: LabelledSet
    config: SurgeryConfig


def examine(patient: Patient, methods: Iterable[str], observer: Observer) -> Subject:
    """Everything that the methods need, over all images."""
    methods = list(methods)
    classifier = patient.classifier
    problem = _problem(patient, methods)
    images = problem.sensitivity_data
    first, _ = next(images.batches(2, classifier.device))
    head = find_head(classifier, first)
    size, device = patient.config.batch_size, problem.space.device
    features = None
    if head is None:
        logits = compute_logits(classifier, images, size)
    else:
        features, logits = compute_features(classifier, head, images, size)
    subject = Subject(
        classes=images.classes,
        labels=images.labels.to(device),
        logits=logits.to(device),
        training_counts=torch.bincount(patient.training.labels, minlength=len(images.classes)),
        head=head,
        features=None if features is None else features.to(device),
        measured=lambda step: logit_change(classifier, problem.space, step, images, size),
        counts={"spikes": patient.config.spike_count(len(images.classes)), "random": len(images.classes)},
    )
    directions, prepared = {}, {}
    for family in dict.fromkeys(FAMILIES[base] for base in map(_base, methods) if base in FAMILIES):
        started = time.perf_counter()
        directions[family] = _family(family, patient, problem, subject, methods, observer)
        prepared[family] = time.perf_counter() - started
    return replace(subject, directions=directions, prepared=prepared)


def _problem(patient: Patient, methods: list[str]) -> Problem:
    """The problem whose sensitivity set is all images, with as many spikes as a method asks for at most."""
    classes = len(patient.images.classes)
    asked = [wanted_count(name) or patient.config.spike_count(classes) for name in methods if _base(name) == "surgery"]
    config = replace(patient.config, spikes=max(asked, default=1), sensitivity_cap=None)
    return prepare(patient.classifier, patient.training, patient.images, config)[0]


def _family(
    name: str, patient: Patient, problem: Problem, subject: Subject, methods: list[str], observer: Observer
) -> Directions:
    classifier, images, seed = patient.classifier, problem.sensitivity_data, patient.config.seed
    progress = _progress(observer, name)
    if name == "spikes":
        spectrum = find_spikes(problem, curvature(problem, 1), 1, observer)
        return spike_directions(classifier, spectrum, images, subject.logits, progress)
    if name == "random":
        asked = [wanted_count(m) or len(images.classes) for m in methods if _base(m) == "random"]
        return random_directions(classifier, problem.space, max(asked), images, subject.logits, seed, progress)
    training = patient.training
    return class_gradients(classifier, problem.space, training, images, subject.logits, seed, progress)


def _progress(observer: Observer, name: str) -> Callable[[int, int], None]:
    return lambda done, total: observer.stage(name, done, total)


def _base(name: str) -> str:
    return name.partition(":")[0]
