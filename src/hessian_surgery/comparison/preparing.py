"""From a model and its images to a `Subject`: logits, features and logit changes, each computed once."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from hessian_surgery.baselines.subject import Subject
from hessian_surgery.comparison.entries import FAMILIES, wanted_count
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.directions.biases import bias_directions
from hessian_surgery.directions.class_gradients import class_gradients
from hessian_surgery.directions.family import Directions, Probe
from hessian_surgery.directions.logit_changes import logits_after_steps
from hessian_surgery.directions.random import random_directions
from hessian_surgery.directions.spikes import spike_directions
from hessian_surgery.errors import InputError
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.model.head import compute_features, find_head
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.operation.problem import plan_memory, prepare
from hessian_surgery.paper.loop import Observer, Problem, curvature, find_spikes


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
    # One spike, so that a model that has none, or no room for many, can still be compared in other ways.
    config = replace(patient.config, spikes=1, calibration_cap=None)
    problem, _ = prepare(classifier, patient.training, patient.images, config)
    images = problem.calibration_data
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
        after_step=logits_after_steps(classifier, problem.space, images, size),
        counts={
            "spikes": patient.config.spike_count(len(images.classes)),
            "class-gradients": len(images.classes),
            "random": len(images.classes),
        },
    )
    probe = Probe(classifier, problem.space, images, subject.logits)
    subject = replace(subject, bias=bias_directions(probe, head))
    directions, prepared, missing = dict[str, Directions](), dict[str, float](), dict[str, str]()
    for family in dict.fromkeys(FAMILIES[base] for base in map(_base, methods) if base in FAMILIES):
        started = time.perf_counter()
        try:
            directions[family] = _family(family, patient, problem, subject, methods, observer)
        except InputError as reason:
            missing[family] = str(reason)
        prepared[family] = time.perf_counter() - started
    return replace(subject, directions=directions, prepared=prepared, missing=missing)


def _family(
    name: str, patient: Patient, problem: Problem, subject: Subject, methods: list[str], observer: Observer
) -> Directions:
    """A family of directions, as many as a method asks for at most."""
    images, config = problem.calibration_data, patient.config
    asked = [wanted_count(m) or subject.counts[name] for m in methods if FAMILIES.get(_base(m)) == name]
    probe = Probe(
        patient.classifier,
        problem.space,
        images,
        subject.logits,
        config.batch_size,
        lambda done, total: observer.stage(name, done, total),
    )
    if name == "class-gradients":
        return class_gradients(probe, patient.training, config.seed)
    if name == "random":
        return random_directions(probe, max(asked), config.seed)
    config = replace(config, spikes=max(asked))
    storage = plan_memory(patient.classifier, problem.space, len(patient.training), images, config)
    sought = replace(problem, config=config, storage=storage)
    return spike_directions(probe, find_spikes(sought, curvature(sought, 1), 1, observer))


def _base(name: str) -> str:
    return name.partition(":")[0]
