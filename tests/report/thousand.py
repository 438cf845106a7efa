"""A finished operation on a thousand classes, made from predictions alone: no net, no training."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

import hessian_surgery as hs
from hessian_surgery.evidence.asked import Asked
from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.evidence.deciles import MANY_CLASSES
from hessian_surgery.evidence.effective_rank import analyse
from hessian_surgery.model.evaluation import Answers
from hessian_surgery.operation.findings import Findings, make_findings
from hessian_surgery.operation.front import BUDGETS, describe_front
from hessian_surgery.operation.iteration_record import Gain, Responses, StepRecord
from hessian_surgery.operation.outcome import Outcome
from hessian_surgery.types import Array

CLASSES = 1000
IMAGES = 20_000
GRADIENTS = 20
WORDS = ("tench", "great white shark", "hammerhead", "cock", "ostrich", "brambling", "goldfinch", "house finch")


def class_names(classes: int) -> tuple[str, ...]:
    """Names of several words, some of which many classes share."""
    return tuple(f"{WORDS[j % len(WORDS)]} {j:04d}" for j in range(classes))


def true_accuracies(classes: int) -> tuple[Array, Array]:
    """Accuracies of a model (C,) before and after: drawn, then pulled towards their mean."""
    before = np.random.default_rng(1).beta(7, 2, classes)
    return before, before + 0.25 * (before.mean() - before)


def draw_answers(names: tuple[str, ...], images: int, seed: int) -> BeforeAfter:
    """Predictions for images of all classes; wrong ones go to one of five neighbours."""
    classes = len(names)
    draw = np.random.default_rng(seed)
    before, after = true_accuracies(classes)
    labels = np.arange(images) % classes
    wrong = (labels + draw.integers(1, 6, images)) % classes
    luck = draw.random(images)
    later = np.where(draw.random(images) < 0.1, draw.random(images), luck)
    found = [np.where(u < rate[labels], labels, wrong) for u, rate in ((luck, before), (later, after))]
    old, new = (
        Answers(torch.tensor(p), torch.tensor(draw.uniform(0.3, 1, images)), torch.tensor(draw.exponential(1, images)))
        for p in found
    )
    return BeforeAfter(names, torch.arange(images), torch.tensor(labels), old, new)


def drawn_findings(names: tuple[str, ...], images: int) -> Findings:
    """What the images say, with every class above the mean protected."""
    calibration, heldout = (draw_answers(names, images, seed) for seed in (2, 3))
    rate = np.array(calibration.metrics()[0].per_class)
    limits = {name: 0.1 for name, value in zip(heldout.classes, rate, strict=True) if value > rate.mean()}
    return make_findings(calibration, heldout, Asked(budget=0.002, limits=limits), (), 0)


def drawn_outcome(findings: Findings) -> Outcome:
    """An outcome around findings: a step, its responses and a front of 18 points."""
    names = findings.heldout.classes
    after = findings.calibration.metrics()[1]
    labels = [*(f"bias of {name}" for name in names), *(f"class gradient {i + 1}" for i in range(GRADIENTS))]
    draw = np.random.default_rng(4)
    values = np.vstack([0.5 * np.eye(len(names)) - 0.5 / len(names), draw.normal(0, 0.3, (GRADIENTS, len(names)))])
    coefficients = draw.normal(0, 0.1, len(labels))
    # As `find_responses` does: with many classes biases are left out.
    first = len(names) if len(names) > MANY_CLASSES else 0
    responses = Responses(labels[first:], "coefficient", values[first:].tolist()).recorded(coefficients)
    record = StepRecord(
        iteration=1,
        accepted=True,
        eigenvalues=[],
        residuals=[],
        products=0,
        coefficients=coefficients.tolist(),
        responses=responses,
        candidate_sigma=after.sigma,
        max_drop=0.1,
        sigma=after.sigma,
        accuracy=after.accuracy,
        worst=after.worst,
        per_class=after.per_class,
        seconds={"directions": 1.0},
        predicted=after.per_class,
        gain=Gain(0.02, 0.002),
        length=0.5,
    )
    protected = list(findings.asked.limits)
    return Outcome(
        config=hs.SurgeryConfig(),
        findings=findings,
        iterations=(record,),
        ended="All 1 iterations are done.",
        front=_front(findings, protected),
        structure=analyse(np.array(record.responses.values), names),
        choices={"directions": "class-gradients", "budget": 0.002, "protected": protected, "max_drop": 0.1},
        split={"calibration": len(findings.calibration.labels), "heldout": len(findings.heldout.labels), "seed": 0},
        seconds=1.0,
        environment={"torch": torch.__version__},
        base_weights={"w": torch.zeros(4)},
        weights={"w": torch.ones(4)},
    )


def _front(findings: Findings, protected: list[str]) -> dict[str, Any]:
    before = findings.calibration.metrics()[0]
    base = np.array(before.per_class)
    count = np.array(before.count, dtype=np.float64)
    points = []
    for objective, strength in (("sigma", 0.2), ("worst", 0.15)):
        for k, budget in enumerate(BUDGETS):
            rate = base + (base.mean() - base) * strength * (1 + 0.3 * k)
            point = {"objective": objective, "budget": budget, "accuracy": float(rate @ count / count.sum())}
            points.append(point | {"sigma": float(rate.std()), "per_class": rate.tolist()})
    numbers = {name: j for j, name in enumerate(findings.heldout.classes)}
    front = {"protected": [numbers[name] for name in protected], "points": points}
    return describe_front(front, base, count, np.array(findings.heldout.metrics()[0].count, dtype=np.float64))


def save_thousand(folder: Path) -> None:
    """The folder of such a run, with its page."""
    inputs = {"model": "resnet50", "checkpoint": "base.safetensors", "data": "imagenet", "out": "run"}
    drawn_outcome(drawn_findings(class_names(CLASSES), IMAGES)).save(folder, None, inputs)
    hs.write_report(folder)
