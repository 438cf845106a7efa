"""Agreement: whether an exported file gives the model's answers."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hessian_surgery.data.batches import Inputs
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.types import Progress

# Samples that are answered at a time.
BATCH = 256


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


def told_batches(data: LabelledSet, progress: Progress) -> Iterator[Inputs]:
    """Batches of inputs on the CPU; before each, `progress` is told how many samples are done."""
    done = 0
    for inputs, labels in data.batches(BATCH, torch.device("cpu")):
        progress(done, len(data))
        yield inputs
        done += len(labels)


def compare_logits(file: Path, logits: Tensor, reference: Tensor, noun: str) -> Agreement:
    """Compare an exported file's logits (N, C) with the model's."""
    differing = int((logits.argmax(dim=1) != reference.argmax(dim=1)).sum())
    return Agreement(file, len(reference), differing, float((logits - reference).abs().max()), noun)
