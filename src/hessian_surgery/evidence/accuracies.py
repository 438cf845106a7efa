"""Accuracies from logits: exact to choose by, and smooth for gradients."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hessian_surgery.errors import InputError
from hessian_surgery.evidence.metrics import class_accuracy, sigma
from hessian_surgery.types import Array

# Temperature of the softmax in smooth accuracies, in units of `logit_unit`.
TEMPERATURE = 0.3


@dataclass(frozen=True)
class Rates:
    """Exact accuracies of a set of answers, as fractions.

    Attributes:
        accuracy: share of correct answers over all images.
        per_class: class accuracies (C,).
    """

    accuracy: float
    per_class: Array

    @cached_property
    def sigma(self) -> float:
        """σ, the population standard deviation of the class accuracies."""
        return sigma(self.per_class)


def rates(logits: Tensor, labels: Tensor, classes: int) -> Rates:
    """Compute the rates of logits (n, C) against labels (n,); every class must have an image."""
    return answer_rates(logits.argmax(dim=1), labels, classes)


def answer_rates(predicted: Tensor, labels: Tensor, classes: int) -> Rates:
    """Compute the rates of answers (n,) against labels (n,); every class must have an image."""
    predicted = predicted.cpu()
    truth = labels.cpu()
    return Rates(float((predicted == truth).double().mean()), class_accuracy(predicted, truth, classes))


def logit_unit(logits: Tensor) -> float:
    """How far logits (n, C) must move to change an answer: the median gap between the top two."""
    if logits.shape[1] < 2:
        raise InputError(f"logits: got {logits.shape[1]} per sample; give a model with two classes or more")
    return float(answer_gaps(logits).median().clamp(min=1e-6))


def answer_gaps(logits: Tensor) -> Tensor:
    """The largest of the logits (n, C) of each image minus the second largest (n,)."""
    first, second = logits.topk(2, dim=1).values.unbind(dim=1)
    return first - second


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    """The true class's logit minus the largest other one (n,), from logits (n, C), labels (n,)."""
    true = labels[:, None]
    return (logits.gather(1, true) - logits.scatter(1, true, -torch.inf).amax(dim=1, keepdim=True)).squeeze(1)


def true_class_probability(logits: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Softmax probability (n,) of the true class at a temperature, which is in units of logits."""
    return torch.softmax(logits / temperature, dim=1).gather(1, labels[:, None]).squeeze(1)


def soft_rates(logits: Tensor, labels: Tensor, classes: int, temperature: float) -> tuple[Tensor, Tensor]:
    """Smooth accuracy over all images, and of each class (C,): the mean `true_class_probability`.

    That probability is the sigmoid of (margin / temperature), with the margin taken over the soft
    maximum of the other logits. It goes to the exact rate as the temperature goes to 0.
    """
    probability = true_class_probability(logits, labels, temperature)
    # A product, not a scattered sum: a GPU adds those up in a different order each time.
    members = torch.nn.functional.one_hot(labels, classes).to(probability.dtype)
    return probability.mean(), (probability @ members) / members.sum(dim=0)
