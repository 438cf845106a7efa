"""Forward passes over a labelled set, and the model's answer to each image."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hessian_surgery.data import batches
from hessian_surgery.data.batches import Inputs
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.distributed import join_batches, require_same, together
from hessian_surgery.errors import InputError
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.halving import in_parts
from hessian_surgery.model.label_names import check_label_names
from hessian_surgery.ranks import present
from hessian_surgery.short_repr import short_repr
from hessian_surgery.weights.tensorfile import weights_sha256

BATCH_SIZE = 512

# How much logits may differ between batches, in units of their root mean square.
BATCH_ROUNDING = 0.05


@dataclass(frozen=True)
class Answers:
    """A model's answers to N images.

    Attributes:
        predicted: class with the largest logit (N,).
        confidence: softmax probability of that class (N,).
        nll: −log of the softmax probability of the true class (N,), in nats.
    """

    predicted: Tensor
    confidence: Tensor
    nll: Tensor

    __repr__ = short_repr


def compute_logits(
    classifier: Classifier,
    data: LabelledSet,
    batch_size: int = BATCH_SIZE,
    forward: Callable[[Inputs], Tensor] | None = None,
) -> Tensor:
    """Compute logits (N, C) in evaluation mode, in the set's order; on the CPU, in float32.

    A batch that does not fit in memory goes through in parts.

    Args:
        classifier: the model.
        data: the N images.
        batch_size: images per forward pass.
        forward: function from a batch to its logits; by default `batch_logits`.
    """
    # Not in inference mode: what a module caches there cannot be differentiated later.
    plain = partial(batch_logits, classifier)
    forward = in_parts(forward or plain, torch.cat, plain)
    with classifier.evaluating(), torch.no_grad():
        return rows_of(forward, data, batch_size, classifier.device).cpu()


def rows_of(
    function: Callable[[Inputs], Tensor],
    data: LabelledSet,
    batch_size: int,
    device: torch.device,
    place: torch.device | None = None,
) -> Tensor:
    """The rows (N, …) that a function gives for all samples, batch by batch, in the set's order.

    Ranks take turns at whole batches: so each row is the same, bit for bit, however many there are.

    Args:
        function: function from the inputs of a batch to its rows, in float32.
        data: the N samples.
        batch_size: samples in a batch.
        device: where inputs go.
        place: where rows are; by default there, too.
    """
    with together():
        mine = [function(inputs) for inputs, _ in data.batches(batch_size, device, present())]
    return join_batches(mine, len(data), batch_size, place or device)


def batch_logits(classifier: Classifier, inputs: Inputs) -> Tensor:
    """Compute the logits (n, C) of a batch in float32."""
    return classifier.logits(inputs).float()


def predict(classifier: Classifier, data: LabelledSet, batch_size: int = BATCH_SIZE) -> Tensor:
    """Predict the class of each image (N,) int64."""
    return compute_logits(classifier, data, batch_size).argmax(dim=1)


def answer(classifier: Classifier, data: LabelledSet, batch_size: int = BATCH_SIZE) -> Answers:
    """Compute the model's answer to each image."""
    return answers_of(finite_logits(classifier, data, batch_size), data.labels)


def finite_logits(classifier: Classifier, data: LabelledSet, batch_size: int = BATCH_SIZE) -> Tensor:
    """Compute logits (N, C) as `compute_logits` does; refuse any that are not finite."""
    return require_finite(compute_logits(classifier, data, batch_size), data)


def require_finite(logits: Tensor, data: LabelledSet) -> Tensor:
    """The logits (N, C) of a set; raise an InputError if any are not finite."""
    wrong = ~torch.isfinite(logits).all(dim=1)
    if wrong.any():
        first = int(data.index[wrong.nonzero()[0, 0]])
        raise InputError(
            f"model: its logits are not finite on image {first} ({int(wrong.sum())} such images); check these images"
        )
    return logits


def answers_of(logits: Tensor, labels: Tensor) -> Answers:
    """The answers that logits (N, C) stand for, with the true classes (N,)."""
    log_p = logits.log_softmax(dim=1)
    return Answers(
        predicted=logits.argmax(dim=1),
        confidence=log_p.max(dim=1).values.exp(),
        nll=-log_p.gather(1, labels[:, None]).squeeze(1),
    )


def check_classifier(classifier: Classifier, data: LabelledSet) -> str | None:
    """Refuse a model that cannot be measured; return a note on outputs without a class, and names.

    The class names of a Hugging Face model must be in the data's order.
    """
    if any(parameter.is_inference() for parameter in classifier.module.parameters()):
        raise InputError("model: its weights were made in inference mode; build or load it outside of that")
    _require_same_everywhere(classifier, data)
    classifier = classifier.as_inputs_come()
    inputs, _ = next(data.batches(32, classifier.device))
    # Both passes in one block: a second block would restart the random state and hide randomness.
    with classifier.evaluating(), torch.no_grad():
        try:
            first, second = classifier.logits(inputs), classifier.logits(inputs)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            if isinstance(error, (InputError, torch.OutOfMemoryError)):
                raise
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in batches.tensors(inputs))
            reason = str(error).strip().partition("\n")[0]
            raise InputError(
                f"model: it cannot take inputs of shape {shapes}: {reason}; give them as it was trained on them"
            ) from error
    count = len(batches.tensors(inputs)[0])
    if len(first) != count:
        raise InputError(f"model: it gives {len(first)} rows of logits for {count} samples; it must give one for each")
    outputs = first.shape[1]
    classes = len(data.classes)
    if outputs < classes:
        raise InputError(
            f"model: it gives {outputs} logits, but the data has {classes} classes, with labels from "
            f"{int(data.labels.min())} to {int(data.labels.max())}; labels start at 0, and each has an output"
        )
    if not torch.isfinite(first).all():
        where = "weights" if all(torch.isfinite(part).all() for part in batches.tensors(inputs)) else "data"
        raise InputError(f"model: its logits are not finite on the first images; check the {where}")
    if not torch.equal(first, second):
        raise InputError(
            "model: two identical passes in evaluation mode differ; "
            "switch off whatever is random in its forward pass, such as functional dropout or sampling"
        )
    _refuse_batch_dependence(classifier, inputs, first)
    notes = [check_label_names(classifier.module, data.classes), probabilities_note(first)]
    if outputs > classes:
        extra = "an answer beyond the classes counts as wrong"
        notes.append(f"the model has {outputs} outputs, the data {classes} classes: {extra}")
    return "; ".join(note for note in notes if note) or None


def probabilities_note(outputs: Tensor) -> str | None:
    """Say that outputs (n, C) look like probabilities, if they do."""
    sums = outputs.sum(dim=1)
    if outputs.shape[1] < 2 or bool((outputs < 0).any()) or not torch.allclose(sums, torch.ones_like(sums), atol=1e-3):
        return None
    return "the model's outputs look like probabilities, as each row sums to 1; give the logits before the softmax"


def _require_same_everywhere(classifier: Classifier, data: LabelledSet) -> None:
    """Refuse ranks that have read other weights or other labels."""
    if present().joined:
        held = {"labels": data.labels, "index": data.index}
        seen = weights_sha256(classifier.module.state_dict()) + weights_sha256(held)
        require_same(seen, "has other weights or other data than rank 0; give all ranks the same files")


def _refuse_batch_dependence(classifier: Classifier, inputs: Inputs, logits: Tensor) -> None:
    """Refuse a model whose logits (n, C) for a sample depend on the rest of its batch."""
    half = len(logits) // 2
    if half == 0:
        return
    # The first half of the samples, twice: in a batch of the same size, but with other company.
    twice = batches.take(inputs, torch.arange(len(logits), device=logits.device) % half)
    with classifier.evaluating(), torch.no_grad():
        again = classifier.logits(twice)
    size = float(logits.float().square().mean().sqrt())
    if float((again[:half].float() - logits[:half].float()).abs().max()) > BATCH_ROUNDING * max(size, 1e-6):
        raise InputError(
            "model: its logits for an image depend on the other images of the batch; switch that off, "
            "such as BatchNorm without running statistics"
        )


def output_name(output: int, classes: tuple[str, ...]) -> str:
    """The class that an output (from 0) stands for, or "output 12" if there is no such class."""
    return classes[output] if output < len(classes) else f"output {output}"
