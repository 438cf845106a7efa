"""Forward passes over a labelled set. Everything measured derives from the answer to each image."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hessian_surgery.data import batches
from hessian_surgery.data.batches import Inputs
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.errors import InputError
from hessian_surgery.model.classifier import Classifier

BATCH_SIZE = 512


@dataclass(frozen=True)
class Answers:
    """What a model says about N images.

    Attributes:
        predicted: (N,) the class with the largest logit.
        confidence: (N,) its softmax probability.
        nll: (N,) −log of the softmax probability of the true class, in nats.
    """

    predicted: Tensor
    confidence: Tensor
    nll: Tensor


def compute_logits(
    classifier: Classifier,
    data: LabelledSet,
    batch_size: int = BATCH_SIZE,
    forward: Callable[[Inputs], Tensor] | None = None,
) -> Tensor:
    """Logits (N, C) on the CPU in float32, in the set's order, in evaluation mode.

    Without gradients, but not in inference mode: what a module caches there could not be differentiated later.
    `forward` stands for `batch_logits`.
    """
    forward = forward or partial(batch_logits, classifier)
    with classifier.evaluating(), torch.no_grad():
        shown = data.batches(batch_size, classifier.device)
        return torch.cat([forward(inputs) for inputs, _ in shown]).cpu()


def batch_logits(classifier: Classifier, inputs: Inputs) -> Tensor:
    """Logits (n, C) of a batch in float32."""
    return classifier.logits(batches.channels_last(inputs)).float()


def predict(classifier: Classifier, data: LabelledSet, batch_size: int = BATCH_SIZE) -> Tensor:
    """The predicted class of each image (N,) int64."""
    return compute_logits(classifier, data, batch_size).argmax(dim=1)


def answer(classifier: Classifier, data: LabelledSet, batch_size: int = BATCH_SIZE) -> Answers:
    """The model's answer to each image."""
    logits = compute_logits(classifier, data, batch_size)
    wrong = ~torch.isfinite(logits).all(dim=1)
    if wrong.any():
        first = int(data.index[wrong.nonzero()[0, 0]])
        raise InputError(f"model: its logits are not finite on image {first} ({int(wrong.sum())} such images)")
    log_p = logits.log_softmax(dim=1)
    return Answers(
        predicted=logits.argmax(dim=1),
        confidence=log_p.max(dim=1).values.exp(),
        nll=-log_p.gather(1, data.labels[:, None]).squeeze(1),
    )


def check_classifier(classifier: Classifier, data: LabelledSet) -> str | None:
    """Refuse a model that cannot be measured; returns a note where it has more outputs than the data has classes."""
    inputs, _ = next(data.batches(32, classifier.device))
    # Both passes in one context: each context starts from the same random state, which would hide what is random.
    with classifier.evaluating(), torch.no_grad():
        try:
            first, second = classifier.logits(inputs), classifier.logits(inputs)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            if isinstance(error, (InputError, torch.OutOfMemoryError)):
                raise
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in batches.tensors(inputs))
            reason = str(error).strip().partition("\n")[0]
            raise InputError(f"model: it cannot take inputs of shape {shapes}: {reason}") from error
    outputs, classes, count = first.shape[1], len(data.classes), len(batches.tensors(inputs)[0])
    if len(first) != count:
        raise InputError(f"model: it gives {len(first)} rows of logits for {count} samples; one for each is needed")
    if outputs < classes:
        raise InputError(
            f"model: it gives {outputs} logits where the data has {classes} classes; "
            "give the model that was trained on these classes"
        )
    if not torch.isfinite(first).all():
        raise InputError("model: its logits are not finite on the first images; check the weights and the inputs")
    if not torch.equal(first, second):
        raise InputError(
            "model: two identical passes in evaluation mode differ; "
            "switch off what is random in its forward pass (dropout by hand, sampling)"
        )
    if outputs > classes:
        return f"the model has {outputs} outputs, the data {classes} classes: an answer beyond these counts as wrong"
    return None
