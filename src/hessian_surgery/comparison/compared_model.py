"""The compared model and its images, and the outputs computed from them, each once."""

import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from hessian_surgery.baselines.finetune import FINETUNES
from hessian_surgery.baselines.outputs import ModelOutputs
from hessian_surgery.comparison.entries import family_of, wanted_count
from hessian_surgery.curvature.search import SpikeSearch, plan_basis
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.directions.biases import bias_directions
from hessian_surgery.directions.class_gradients import class_gradients
from hessian_surgery.directions.class_groups import count_groups
from hessian_surgery.directions.family import Directions, Probe
from hessian_surgery.directions.logit_changes import logits_after_steps
from hessian_surgery.directions.random import random_directions
from hessian_surgery.directions.spikes import spike_directions
from hessian_surgery.errors import FileError, InputError
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import compute_logits, require_finite
from hessian_surgery.model.head import compute_features, find_head
from hessian_surgery.model.passes import Passes
from hessian_surgery.operation.config import OperationConfig
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.problem import Inputs, Problem, check_inputs, measure_start
from hessian_surgery.paper.config import LoopConfig, as_loop
from hessian_surgery.paper.loop import finder_of

# The stages of a comparison's outputs; each family of directions has one of its own.
OUTPUTS = "outputs"
SEEKING = "finding spikes"


def family_stage(name: str) -> str:
    """The stage of a family of directions."""
    return f"directions: {name}"


@dataclass(frozen=True)
class ComparedModel:
    """A model, its images and its options.

    Attributes:
        classifier: the model, at the weights that are compared.
        images: all labelled images that the splits divide.
        training_data: the images that it was trained on.
        config: how to find spikes and run the loop.
        passes: how forward passes are made, the same for all entries and splits.
        notes: what is said of the model's outputs.
    """

    classifier: Classifier
    images: LabelledSet
    training_data: LabelledSet
    config: OperationConfig
    passes: Passes = field(default_factory=Passes)
    notes: tuple[str, ...] = ()


def matched_search(search: SpikeSearch, training: str) -> SpikeSearch:
    """How spikes are sought after a training: with its own loss, as in the paper's section 9.2.

    After class-balanced training the paper takes cross-entropy on as many images of each class.
    """
    if training == "class-balanced":
        return replace(search, loss="cross-entropy", hessian_sampling="stratified")
    return replace(search, loss=FINETUNES[training].loss)


def compute_outputs(model: ComparedModel, methods: Iterable[str], observer: Observer) -> ModelOutputs:
    """Compute all that the methods need, over all images."""
    methods = list(methods)
    classifier = model.classifier
    # With one spike, a model without spikes, or without memory for many, can still be compared.
    loop = as_loop(model.config)
    config = replace(loop, search=replace(loop.search, spikes=1), calibration_cap=None)
    inputs = check_inputs(classifier, model.training_data, model.images, config)
    outputs = _logits_and_head(model, inputs)
    problem, _ = measure_start(inputs, model.passes, outputs.logits.cpu())
    probe = Probe(classifier, problem.space, problem.calibration_data, outputs.logits, problem.batch_size)
    outputs = replace(outputs, bias=bias_directions(probe, outputs.head))
    directions: dict[str, Directions] = {}
    seconds: dict[str, float] = {}
    missing: dict[str, str] = {}
    for family in dict.fromkeys(map(family_of, methods)):
        if family is None:
            continue
        started = time.perf_counter()
        try:
            directions[family] = _compute_family(family, model, problem, outputs, methods, observer)
        except FileError:
            raise
        except InputError as reason:
            missing[family] = str(reason)
        seconds[family] = time.perf_counter() - started
    return replace(outputs, directions=directions, family_seconds=seconds, missing=missing)


def _logits_and_head(model: ComparedModel, checked: Inputs[LoopConfig]) -> ModelOutputs:
    """Compute the outputs without any directions, in one pass."""
    classifier = model.classifier
    images = checked.calibration_data
    classes = len(images.classes)
    device = checked.space.device
    size = model.passes.batch_size
    first, _ = next(images.batches(2, classifier.device))
    head = find_head(classifier, first)
    features = None
    if head is None:
        logits = compute_logits(classifier, images, size)
    else:
        features, logits = compute_features(classifier, head, images, size)
    return ModelOutputs(
        classes=images.classes,
        labels=images.labels.to(device),
        logits=require_finite(logits, images).to(device),
        training_counts=torch.bincount(model.training_data.labels, minlength=classes),
        head=head,
        features=None if features is None else features.to(device),
        after_step=logits_after_steps(classifier, checked.space, images, size),
        default_counts={
            "spikes": model.config.search.count(classes),
            "class-gradients": count_groups(classes),
            "random": count_groups(classes),
        },
    )


def _compute_family(
    name: str,
    model: ComparedModel,
    problem: Problem[LoopConfig],
    outputs: ModelOutputs,
    methods: list[str],
    observer: Observer,
) -> Directions:
    """Compute a family of directions, as many as the most demanding method needs."""
    images = problem.calibration_data
    config = model.config
    count = max(wanted_count(m) or outputs.default_counts[name] for m in methods if family_of(m) == name)
    stage = family_stage(name)
    done = itertools.count(1)
    # Class gradients are counted twice: when they are found, and when their effect is.
    units = 2 * count if name == "class-gradients" else count
    probe = Probe(
        model.classifier,
        problem.space,
        images,
        outputs.logits,
        problem.batch_size,
        lambda *_: observer.stage(stage, min(next(done), units), units),
    )
    observer.stage(SEEKING if name == "spikes" else stage, 0, 1)
    if name == "class-gradients":
        return class_gradients(probe, model.training_data, config.seed)
    if name == "random":
        return random_directions(probe, count, config.seed)
    storage = plan_basis(model.classifier, problem.space, model.training_data, config.search, count, example=images)
    finder = replace(finder_of(problem), count=count, storage=storage)
    spectrum = finder.find(iteration=1, progress=partial(observer.stage, SEEKING))
    observer.stage(stage, 0, units)
    return spike_directions(probe, spectrum)


def predict_images(model: ComparedModel) -> Tensor:
    """The predicted class of each image (N,), at the present weights."""
    return compute_logits(model.classifier, model.images, model.passes.batch_size).argmax(dim=1)
