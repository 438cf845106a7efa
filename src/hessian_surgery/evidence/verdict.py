"""The verdict on the paired tests, in one word and one sentence."""

from dataclasses import dataclass
from typing import Literal

from hessian_surgery.evidence.paired_tests import FEW_IMAGES, PairedTests


@dataclass(frozen=True)
class Verdict:
    """One word for programs and one sentence for people."""

    outcome: Literal["better", "no detectable change", "worse"]
    sentence: str


def judge(tests: PairedTests, images: int) -> Verdict:
    """Judge an operation by its change of σ on held-out images.

    A fall of σ does not count if the classes got worse on average. If σ shows no change, a loss of
    accuracy decides. Too few images allow no claim.
    """
    if images < FEW_IMAGES:
        return Verdict("no detectable change", f"No claim can be made from {images} held-out images.")
    if tests.churn == 0:
        return Verdict("no detectable change", "No prediction changed: no step was kept, or none that matters.")
    low, high = tests.sigma.interval
    spread = f"σ without sampling noise {tests.sigma}"
    accuracy = f"accuracy {tests.accuracy}{_losers(tests)}"
    if high < 0 and tests.balanced_accuracy.interval[1] < 0:
        levelled = f"Worse: {spread} on held-out images, but the classes lost {tests.balanced_accuracy} on average"
        return Verdict("worse", f"{levelled}, {accuracy}. Keep the original model.")
    if high < 0:
        return Verdict("better", f"Better: {spread} on held-out images, worst class {tests.worst}, {accuracy}.")
    if low > 0:
        return Verdict("worse", f"Worse: {spread} on held-out images, {accuracy}. Keep the original model.")
    if tests.accuracy.interval[1] < 0:
        return Verdict("worse", f"Worse: {accuracy} on held-out images for no detectable gain ({spread}).")
    return Verdict(
        "no detectable change",
        f"No detectable change of σ: {spread} on held-out images is within noise, {accuracy}. Keep the original model.",
    )


def _losers(tests: PairedTests) -> str:
    """Name the classes that lost significantly, as the end of a sentence."""
    lost = [test for test in tests.per_class if test.claim and test.p_holm < 0.05 and test.lost > test.gained]
    named = [
        f"{test.name} ({test.lost - test.gained} images)" for test in sorted(lost, key=lambda t: t.gained - t.lost)
    ]
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return f"; lost significantly: {', '.join(named[:3])}{more}" if named else ""
