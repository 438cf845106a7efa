"""BeforeAfter: a model's answers to the same images before and after an operation."""

from dataclasses import dataclass

from torch import Tensor

from hessian_surgery.evidence.metrics import Metrics, compute_metrics
from hessian_surgery.model.evaluation import Answers


@dataclass(frozen=True)
class BeforeAfter:
    """One set of images before and after.

    Attributes:
        classes: class names.
        index: (N,) where each image stands in its source.
        labels: (N,).
        before: the starting model's answers.
        after: the patched model's.
    """

    classes: tuple[str, ...]
    index: Tensor
    labels: Tensor
    before: Answers
    after: Answers

    def metrics(self) -> tuple[Metrics, Metrics]:
        """Before and after."""
        before, after = (
            compute_metrics(a.predicted, self.labels, len(self.classes)) for a in (self.before, self.after)
        )
        return before, after

    def tensors(self) -> dict[str, Tensor]:
        """What every statistic can be recomputed from."""
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
        """The inverse of `tensors`."""
        before, after = (
            Answers(tensors[name], tensors[f"{name}.confidence"], tensors[f"{name}.nll"])
            for name in ("before", "after")
        )
        return BeforeAfter(classes, tensors["index"], tensors["label"], before, after)
