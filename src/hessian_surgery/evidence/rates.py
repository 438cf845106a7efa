"""What "better" means on logits: the spread σ of soft class accuracies against accuracy, and the exact choice."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.errors import InputError
from hessian_surgery.evidence.metrics import class_accuracy, sigma
from hessian_surgery.types import Array

# Of the softmax that stands for accuracy where a gradient is needed, in units of `logit_unit`.
TEMPERATURE = 0.3


@dataclass(frozen=True)
class Rates:
    """Exact rates of predictions.

    Attributes:
        accuracy: share of all images that are right.
        per_class: class accuracies (C,).
    """

    accuracy: float
    per_class: Array

    @cached_property
    def sigma(self) -> float:
        """σ, the population standard deviation of the class accuracies."""
        return sigma(self.per_class)


def rates(logits: Tensor, labels: Tensor, classes: int) -> Rates:
    """Exact rates of logits (n, C) against labels (n,); every class must have an image."""
    return answer_rates(logits.argmax(dim=1), labels, classes)


def answer_rates(predicted: Tensor, labels: Tensor, classes: int) -> Rates:
    """Exact rates of answers (n,) against labels (n,); every class must have an image."""
    predicted, truth = predicted.cpu(), labels.cpu()
    return Rates(float((predicted == truth).double().mean()), class_accuracy(predicted, truth, classes))


def logit_unit(logits: Tensor) -> float:
    """How far logits (n, C) must move to change an answer: the median distance from the largest to the second."""
    if logits.shape[1] < 2:
        raise InputError(f"logits: got {logits.shape[1]} a sample; two classes or more are needed")
    first, second = logits.topk(2, dim=1).values.unbind(dim=1)
    return float((first - second).median().clamp(min=1e-6))


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    """How far the logit of the truth lies above the largest other one (n,), from logits (n, C) and labels (n,)."""
    true = labels[:, None]
    return (logits.gather(1, true) - logits.scatter(1, true, -torch.inf).amax(dim=1, keepdim=True)).squeeze(1)


def soft_rates(logits: Tensor, labels: Tensor, classes: int, temperature: float) -> tuple[Tensor, Tensor]:
    """Smooth accuracy, over all images and per class (C,): the softmax probability of the truth at a temperature.

    It is the sigmoid of the margin over the other logits' soft maximum, and goes to the exact rate as the temperature
    goes to 0.
    """
    sure = torch.softmax(logits / temperature, dim=1).gather(1, labels[:, None]).squeeze(1)
    # A product, not a scattered sum, which a GPU adds up in another order each time.
    members = torch.nn.functional.one_hot(labels, classes).to(sure.dtype)
    return sure.mean(), (sure @ members) / members.sum(dim=0)


def unbeaten(accuracy: Array, spread: Array) -> list[int]:
    """Which points (P,) no other point beats in accuracy and σ (`spread`) both, from the most accurate on."""
    kept: list[int] = []
    for i in np.lexsort((spread, -accuracy)):
        if not kept or spread[i] < spread[kept[-1]]:
            kept.append(int(i))
    return kept


def choose(candidates: list[Rates], floor: float) -> int:
    """The candidate of least σ among those at or above a floor of accuracy.

    Raises:
        InputError: none is.
    """
    allowed = [i for i, found in enumerate(candidates) if found.accuracy >= floor - 1e-12]
    if not allowed:
        best = max((found.accuracy for found in candidates), default=float("nan"))
        raise InputError(f"no candidate keeps accuracy at {100 * floor:.2f} %; the best has {100 * best:.2f} %")
    return min(allowed, key=lambda i: (candidates[i].sigma, -candidates[i].accuracy))


def require_classes(labels: Tensor, classes: tuple[str, ...], where: str) -> None:
    """Raise an InputError where a class has no image."""
    empty = np.flatnonzero(np.bincount(labels.cpu().numpy(), minlength=len(classes)) == 0)
    if len(empty):
        raise InputError(f"class {classes[empty[0]]!r} has no image in the {where} half")
