"""What a before/after comparison on the same images can claim: paired tests, intervals, the verdict."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats
from torch import Tensor

from hessian_surgery.metrics import Array, class_accuracy

RESAMPLES = 4000
FEW_IMAGES = 50


@dataclass(frozen=True)
class Difference:
    """After minus before, with a 95 % interval."""

    difference: float
    interval: tuple[float, float]

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.difference:+.1f} pp [{100 * low:+.1f}, {100 * high:+.1f}]"


@dataclass(frozen=True)
class ClassTest:
    """Exact McNemar test of one class: images gained and lost, p, and p after Holm's correction over classes."""

    name: str
    gained: int
    lost: int
    p: float
    p_holm: float

    def as_dict(self) -> dict[str, Any]:
        """The form that `result.json` holds."""
        return {"class": self.name} | {key: value for key, value in asdict(self).items() if key != "name"}


@dataclass(frozen=True)
class PairedTests:
    """All comparisons between predictions before and after, on the same images."""

    sigma: Difference
    accuracy: Difference
    balanced_accuracy: Difference
    worst: Difference
    per_class: tuple[ClassTest, ...]

    def as_dict(self) -> dict[str, Any]:
        """The form that `result.json` holds."""
        differences = {
            name: asdict(getattr(self, name)) for name in ("sigma", "accuracy", "balanced_accuracy", "worst")
        }
        return differences | {"per_class": [test.as_dict() for test in self.per_class]}


@dataclass(frozen=True)
class Verdict:
    """One word for programs and one sentence for people."""

    outcome: Literal["better", "no detectable change", "worse"]
    sentence: str


def compare(before: Tensor, after: Tensor, labels: Tensor, classes: tuple[str, ...], seed: int = 0) -> PairedTests:
    """Paired tests of predictions (N,) before and after, against labels (N,).

    Intervals come from a paired bootstrap stratified by class. A class's images fall into four kinds (right or
    wrong, before and after), so that resampling them is one multinomial draw.
    """
    kinds = _pair_counts(before, after, labels, len(classes))
    count = kinds.sum(axis=1)
    rng = np.random.default_rng([seed, 0x5EED])
    resampled = np.stack([rng.multinomial(n, row / n, size=RESAMPLES) for n, row in zip(count, kinds, strict=True)], 1)
    drawn_before = (resampled[..., 0] + resampled[..., 1]) / count
    drawn_after = (resampled[..., 0] + resampled[..., 2]) / count
    old, new = (class_accuracy(p, labels, len(classes)) for p in (before, after))

    def difference(statistic: Callable[[Array], Array]) -> Difference:
        draws = statistic(drawn_after) - statistic(drawn_before)
        low, high = np.quantile(draws, [0.025, 0.975])
        return Difference(float(statistic(new) - statistic(old)), (float(low), float(high)))

    return PairedTests(
        sigma=difference(lambda a: np.std(a, axis=-1)),
        accuracy=difference(lambda a: np.asarray(a @ count / count.sum())),
        balanced_accuracy=difference(lambda a: np.mean(a, axis=-1)),
        worst=difference(lambda a: np.min(a, axis=-1)),
        per_class=_class_tests(kinds, classes),
    )


def _pair_counts(before: Tensor, after: Tensor, labels: Tensor, classes: int) -> Array:
    """Images per class (C, 4): right both times, right before only, right after only, never right."""
    right_before, right_after = (before == labels).long(), (after == labels).long()
    kind = 3 - 2 * right_before - right_after
    joint = (labels * 4 + kind).numpy()
    return np.bincount(joint, minlength=4 * classes).reshape(classes, 4).astype(np.float64)


def _class_tests(kinds: Array, classes: tuple[str, ...]) -> tuple[ClassTest, ...]:
    lost, gained = kinds[:, 1].astype(int), kinds[:, 2].astype(int)
    p = [mcnemar(int(g), int(b)) for g, b in zip(gained, lost, strict=True)]
    rows = zip(classes, gained.tolist(), lost.tolist(), p, holm(p), strict=True)
    return tuple(ClassTest(*row) for row in rows)


def mcnemar(gained: int, lost: int) -> float:
    """Exact two-sided McNemar test: are gains and losses equally likely?"""
    changed = gained + lost
    return float(stats.binomtest(gained, changed).pvalue) if changed else 1.0


def holm(p: list[float]) -> list[float]:
    """Holm's step-down correction of p-values for testing all of them at once."""
    order = np.argsort(p, kind="stable")
    stepped = np.array(p)[order] * np.arange(len(p), 0, -1)
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(stepped))
    return [float(value) for value in corrected]


def judge(tests: PairedTests) -> Verdict:
    """The verdict: σ decides; where σ shows nothing, a loss of accuracy does."""
    low, high = tests.sigma.interval
    spread, accuracy = f"σ {tests.sigma}", f"accuracy {tests.accuracy}"
    if high < 0:
        return Verdict("better", f"Better: {spread} on held-out images, worst class {tests.worst}, {accuracy}.")
    if low > 0:
        return Verdict("worse", f"Worse: {spread} on held-out images, {accuracy}. Keep the original model.")
    if tests.accuracy.interval[1] < 0:
        return Verdict("worse", f"Worse: {accuracy} on held-out images for no detectable gain ({spread}).")
    return Verdict(
        "no detectable change",
        f"No detectable change: {spread} on held-out images is within noise, {accuracy}. Keep the original model.",
    )
