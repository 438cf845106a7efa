"""Forward passes over a labelled set. Everything measured derives from the logits of each image."""

import torch
from torch import Tensor

from hessian_surgery.classifier import Classifier
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.errors import InputError

BATCH_SIZE = 512


def compute_logits(classifier: Classifier, data: LabelledSet, batch_size: int = BATCH_SIZE) -> Tensor:
    """Logits (N, C) on the CPU in float32, in the set's order, in evaluation mode."""
    with classifier.evaluating(), torch.inference_mode():
        parts = [classifier.logits(inputs).float() for inputs, _ in data.batches(batch_size, classifier.device)]
        return torch.cat(parts).cpu()


def predict(classifier: Classifier, data: LabelledSet, batch_size: int = BATCH_SIZE) -> Tensor:
    """The predicted class of each image (N,) int64."""
    return compute_logits(classifier, data, batch_size).argmax(dim=1)


def check_classifier(classifier: Classifier, data: LabelledSet) -> None:
    """Refuse a model that cannot be measured: wrong logits, NaN, or another answer each time it is asked."""
    inputs, _ = next(data.batches(32, classifier.device))
    # Both passes in one context: each context starts from the same random state, which would hide what is random.
    with classifier.evaluating(), torch.inference_mode():
        first, second = classifier.logits(inputs), classifier.logits(inputs)
    if first.shape[1] != len(data.classes):
        raise InputError(
            f"model: it gives {first.shape[1]} logits where the data has {len(data.classes)} classes; "
            "give the model that was trained on these classes"
        )
    if not torch.isfinite(first).all():
        raise InputError("model: its logits are not finite on the first images; check the weights and the inputs")
    if not torch.equal(first, second):
        raise InputError(
            "model: two identical passes in evaluation mode differ; "
            "switch off what is random in its forward pass (dropout by hand, sampling)"
        )
