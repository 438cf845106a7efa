"""BeforeAfter: the answers to the same images before and after an operation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hessian_surgery.evidence.metrics import Metrics, compute_metrics
from hessian_surgery.model.evaluation import Answers
from hessian_surgery.short_repr import short_repr


@dataclass(frozen=True)
class BeforeAfter:
    """A model's answers to one set of images, before and after an operation.

    Attributes:
        classes: class names.
        index: position of each image in its source (N,).
        labels: true classes (N,).
        before: answers of the starting model.
        after: answers of the patched model.

    Example:
        >>> before, after = outcome.findings.heldout.metrics()
        >>> after.worst > before.worst
        True
    """

    classes: tuple[str, ...]
    index: Tensor
    labels: Tensor
    before: Answers
    after: Answers

    __repr__ = short_repr

    def metrics(self) -> tuple[Metrics, Metrics]:
        """Compute the metrics before and after."""
        before, after = (
            compute_metrics(a.predicted, self.labels, len(self.classes)) for a in (self.before, self.after)
        )
        return before, after

    def tensors(self) -> dict[str, Tensor]:
        """The tensors to save: every statistic can be computed again from them."""
        held = {
            "index": self.index,
            "label": self.labels,
            "before": self.before.predicted,
            "after": self.after.predicted,
        }
        for name, answers in (("before", self.before), ("after", self.after)):
            held |= {f"{name}.confidence": answers.confidence, f"{name}.nll": answers.nll}
        return held

    @staticmethod
    def from_tensors(tensors: dict[str, Tensor], classes: tuple[str, ...]) -> "BeforeAfter":
        """Invert `tensors`; they may come from a damaged file.

        Raises:
            ValueError: they do not fit together, or hold what no model answers.
        """
        _check(tensors, len(classes))
        before, after = (
            Answers(tensors[name], tensors[f"{name}.confidence"], tensors[f"{name}.nll"])
            for name in ("before", "after")
        )
        return BeforeAfter(classes, tensors["index"], tensors["label"], before, after)


def _check(tensors: dict[str, Tensor], classes: int) -> None:
    """Refuse tensors of another kind, length or range than `BeforeAfter.tensors` has."""
    count = len(tensors["label"])
    for name in ("index", "label", "before", "after"):
        tensor = tensors[name]
        if tensor.dtype != torch.int64 or tensor.shape != (count,) or count == 0 or int(tensor.min()) < 0:
            raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, not {count} counts from 0")
    if int(tensors["label"].max()) >= classes:
        raise ValueError(f"a label is beyond the {classes} classes")
    for name in ("before", "after"):
        for figure, highest in ((f"{name}.confidence", 1 + 1e-6), (f"{name}.nll", float("inf"))):
            tensor = tensors[figure]
            known = tensor.is_floating_point() and tensor.shape == (count,) and bool(torch.isfinite(tensor).all())
            if not known or float(tensor.min()) < -1e-6 or float(tensor.max()) > highest:
                raise ValueError(f"{figure} is not {count} finite figures from 0")
