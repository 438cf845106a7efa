"""Agreement: whether an exported file gives the model's answers."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor


@dataclass(frozen=True)
class Agreement:
    """How an exported file answers, beside the model that it was made from.

    Attributes:
        file: the exported file.
        samples: how many samples both answered.
        differing: samples for which the largest logit is another one.
        largest_difference: between two logits, of all samples and outputs.
        noun: what the samples are called, such as "images".

    Example:
        >>> found = hs.export(model, "model.pt2", heldout)
        >>> print(found)
        model.pt2 gives the model's answer on all 600 samples
        >>> found.largest_difference < 1e-4
        True
    """

    file: Path
    samples: int
    differing: int
    largest_difference: float
    noun: str = "samples"

    def __str__(self) -> str:
        if self.differing:
            others = f"another answer than the model on {self.differing:,} of {self.samples:,} {self.noun}"
            return f"{self.file} gives {others}; logits differ by up to {self.largest_difference:.2g}"
        return f"{self.file} gives the model's answer on all {self.samples:,} {self.noun}"


def compare_logits(file: Path, logits: Tensor, reference: Tensor, noun: str) -> Agreement:
    """Compare an exported file's logits (N, C) with the model's."""
    differing = int((logits.argmax(dim=1) != reference.argmax(dim=1)).sum())
    return Agreement(file, len(reference), differing, float((logits - reference).abs().max()), noun)
