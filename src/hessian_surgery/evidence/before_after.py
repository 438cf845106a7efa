"""BeforeAfter: the answers to the same images before and after an operation."""

from dataclasses import dataclass

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
        """Invert `tensors`."""
        before, after = (
            Answers(tensors[name], tensors[f"{name}.confidence"], tensors[f"{name}.nll"])
            for name in ("before", "after")
        )
        return BeforeAfter(classes, tensors["index"], tensors["label"], before, after)
