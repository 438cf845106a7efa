"""Simpler: what a class bias under the same goal and limits does to the held-out images."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.evidence.metrics import Metrics
from hessian_surgery.evidence.paired_tests import FEW_IMAGES, PairedTests, paired_tests
from hessian_surgery.model.evaluation import Answers

# What is compared, and in words.
FIGURES = {"sigma": "σ without sampling noise", "accuracy": "accuracy", "worst": "worst class"}


@dataclass(frozen=True)
class Simpler:
    """A class bias beside the delivered step, on the same held-out images.

    Attributes:
        images: the answers of the class bias as "before", of the delivered step as "after".
        tests: how they differ: delivered minus class bias.
        biases: what it adds to each logit (C), all 0 if no class bias gains beyond noise; empty in
            folds, where each has its own.
    """

    images: BeforeAfter
    tests: PairedTests
    biases: tuple[float, ...]

    @cached_property
    def metrics(self) -> tuple[Metrics, Metrics]:
        """Those of the class bias, and of the delivered step."""
        return self.images.metrics()

    def tensors(self) -> dict[str, Tensor]:
        """The tensors to save, for `load_simpler`."""
        answers = self.images.before
        named = {"": answers.predicted, ".confidence": answers.confidence, ".nll": answers.nll}
        return {f"simpler{key}": tensor for key, tensor in named.items()}

    def as_dict(self) -> dict[str, Any]:
        """The form that `result.json` holds."""
        bias = self.metrics[0]
        return {
            "method": "class-bias",
            "biases": list(self.biases),
            "accuracy": bias.accuracy,
            "sigma": bias.sigma,
            "sigma_corrected": self.tests.sigma_corrected[0],
            "worst": bias.worst,
            "per_class": bias.per_class,
            "difference": {name: asdict(getattr(self.tests, name)) for name in FIGURES},
        }


def make_simpler(images: BeforeAfter, answers: Answers, biases: tuple[float, ...], seed: int) -> Simpler:
    """Compare the answers of a class bias with those after the operation, on the same images."""
    pair = BeforeAfter(images.classes, images.index, images.labels, answers, images.after)
    return Simpler(pair, paired_tests(pair, seed), biases)


def load_simpler(images: BeforeAfter, tensors: Mapping[str, Tensor], result: Mapping[str, Any]) -> Simpler | None:
    """Read the comparison of a finished run; None if it made none.

    Args:
        images: the held-out images.
        tensors: of `predictions.safetensors`.
        result: the contents of `result.json`.
    """
    if not result.get("simpler"):
        return None
    answers = Answers(*(tensors[f"heldout.simpler{key}"] for key in ("", ".confidence", ".nll")))
    return make_simpler(images, answers, tuple(result["simpler"]["biases"]), result["seed"])


def simpler_rows(simpler: Simpler) -> list[tuple[str, str, str, str]]:
    """For each figure: its name, that of the class bias, of the delivered step, the difference."""
    bias, delivered = simpler.metrics
    rows = []
    for name, words in FIGURES.items():
        pair = simpler.tests.sigma_corrected if name == "sigma" else (getattr(bias, name), getattr(delivered, name))
        first, second = (f"{100 * value:.1f} %" for value in pair)
        rows.append((words, first, second, str(getattr(simpler.tests, name))))
    return rows


def simpler_sentence(simpler: Simpler, only_biases: bool, aim: str) -> str:
    """Whether the step does more than a class bias does, by what was aimed at: σ or worst class.

    Args:
        simpler: the comparison.
        only_biases: whether the delivered step moved nothing but the head's biases.
        aim: "sigma" or "worst".
    """
    if only_biases:
        return "The step is itself a class bias: one number added to each logit. Nothing simpler was left to try."
    if simpler.biases and not any(simpler.biases):
        start = "No class bias gains beyond noise under the same goal and limits, so that would be the model as it is"
    else:
        start = "Class bias (one number added to each logit) under the same goal and limits"
    low, high = getattr(simpler.tests, aim).interval
    low, high = (low, high) if aim == "worst" else (-high, -low)
    if simpler.tests.churn == 0:
        return f"{start}: the same predictions."
    if len(simpler.images.labels) < FEW_IMAGES:
        return f"{start}: too few images to compare."
    words = "this step does more" if low > 0 else "that would do more" if high < 0 else "no detectable difference"
    gap = f"this step minus class bias {getattr(simpler.tests, aim)}, each at its own accuracy"
    return f"{start}: {words} for {FIGURES[aim]}, {gap}."
