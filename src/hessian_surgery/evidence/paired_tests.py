"""Compare answers before and after: differences with intervals, a test for each class, flows."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.evidence.calibration_error import calibration_change, calibration_error
from hessian_surgery.evidence.difference import Difference, by_percentiles
from hessian_surgery.evidence.noise_free_sigma import corrected_sigma, sigma_change
from hessian_surgery.evidence.resampled_pairs import pair_counts, resample_pairs
from hessian_surgery.evidence.significance import detectable_change, holm, mcnemar
from hessian_surgery.model.evaluation import output_name
from hessian_surgery.short_repr import short_repr
from hessian_surgery.types import Array

# With fewer images of a class, no claim is made about it.
FEW_IMAGES = 50


@dataclass(frozen=True)
class ClassTest:
    """Exact McNemar test of one class.

    Attributes:
        name: the class.
        gained: images that became right.
        lost: images that became wrong.
        p: two-sided p-value.
        p_holm: p-value after Holm's correction for testing every class.
        detectable: smallest change of accuracy that the corrected test finds in four cases out of
            five, if as many images change as did here.
        claim: False if the class has too few images for a claim.

    Example:
        >>> ant = outcome.findings.tests.per_class[0]
        >>> ant.name, ant.p_holm < 0.05
        ('ant', True)
    """

    name: str
    gained: int
    lost: int
    p: float
    p_holm: float
    detectable: float
    claim: bool

    def as_dict(self) -> dict[str, Any]:
        """The form that `result.json` holds."""
        return {"class": self.name} | {key: value for key, value in asdict(self).items() if key != "name"}


@dataclass(frozen=True)
class Flow:
    """Where the images that a class gained came from, and where those that it lost went.

    Attributes:
        name: the class.
        gained: images that became right.
        gained_from: how many of them had each other answer before.
        lost: images that became wrong.
        lost_to: how many of them have each other answer now.

    Example:
        >>> flow = outcome.findings.tests.flows[0]
        >>> flow.name, flow.lost == sum(flow.lost_to.values())
        ('ant', True)
    """

    name: str
    gained: int
    gained_from: dict[str, int]
    lost: int
    lost_to: dict[str, int]

    __repr__ = short_repr

    def __str__(self) -> str:
        def listed(counts: dict[str, int], word: str) -> str:
            ranked = sorted(counts.items(), key=lambda item: -item[1])
            parts = [f"{count} {word} {name}" for name, count in ranked[:2]]
            others = sum(count for _, count in ranked[2:])
            return ", ".join(parts + ([f"{others} {word} others"] if others else []))

        parts = []
        if self.gained:
            parts.append(f"gained {self.gained} ({listed(self.gained_from, 'from')})")
        if self.lost:
            parts.append(f"lost {self.lost} ({listed(self.lost_to, 'to')})")
        return f"{self.name} " + " and ".join(parts)


@dataclass(frozen=True)
class PairedTests:
    """All comparisons between the answers before and after, on the same images.

    Attributes:
        sigma: change of σ without sampling noise.
        accuracy: change of accuracy over all images.
        balanced_accuracy: change of the mean class accuracy.
        worst: change of the worst class's accuracy.
        nll: mean −log p of the true class before and after, in nats.
        nll_change: change of that mean.
        calibration_error: expected calibration error (15 bins) before and after.
        calibration_change: its change.
        sigma_corrected: σ before and after, without sampling noise.
        churn: share of predictions that changed.
        per_class: a test for each class.
        flows: where the images of each class that changed came from and went to.

    Example:
        >>> low, high = outcome.findings.tests.sigma.interval  # of the change of σ
        >>> high < 0
        True
    """

    sigma: Difference
    accuracy: Difference
    balanced_accuracy: Difference
    worst: Difference
    nll: tuple[float, float]
    nll_change: Difference
    calibration_error: tuple[float, float]
    calibration_change: Difference
    sigma_corrected: tuple[float, float]
    churn: float
    per_class: tuple[ClassTest, ...]
    flows: tuple[Flow, ...]

    __repr__ = short_repr

    def widened(self, factor: float) -> "PairedTests":
        """The same with intervals that reach further by a factor."""
        return replace(
            self,
            sigma=self.sigma.widened(factor),
            accuracy=self.accuracy.widened(factor),
            balanced_accuracy=self.balanced_accuracy.widened(factor),
            worst=self.worst.widened(factor),
            nll_change=self.nll_change.widened(factor),
            calibration_change=self.calibration_change.widened(factor),
        )

    def as_dict(self) -> dict[str, Any]:
        """The form that `result.json` holds."""
        return asdict(self) | {"per_class": [test.as_dict() for test in self.per_class]}


def paired_tests(images: BeforeAfter, seed: int = 0) -> PairedTests:
    """Compare the answers before and after.

    Intervals come from a paired bootstrap, stratified by class.
    """
    labels = images.labels
    kinds = pair_counts(images)
    pairs = resample_pairs(kinds, np.random.default_rng([seed, 0x5EED]))
    count = pairs.count

    def difference(statistic: Callable[[Array], Array]) -> Difference:
        value = statistic(pairs.after) - statistic(pairs.before)
        return by_percentiles(float(value), statistic(pairs.drawn_after) - statistic(pairs.drawn_before))

    return PairedTests(
        sigma=sigma_change(pairs),
        accuracy=difference(lambda a: np.asarray(a @ count / count.sum())),
        balanced_accuracy=difference(lambda a: np.mean(a, axis=-1)),
        worst=difference(lambda a: np.min(a, axis=-1)),
        nll=(float(images.before.nll.double().mean()), float(images.after.nll.double().mean())),
        nll_change=_mean_difference((images.after.nll - images.before.nll).double().numpy()),
        calibration_error=(calibration_error(images.before, labels), calibration_error(images.after, labels)),
        calibration_change=calibration_change(
            images.before, images.after, labels, np.random.default_rng([seed, 0xCA11])
        ),
        sigma_corrected=(float(corrected_sigma(pairs.before, count)), float(corrected_sigma(pairs.after, count))),
        churn=float((images.before.predicted != images.after.predicted).double().mean()),
        per_class=_class_tests(kinds, images.classes),
        flows=flows(images),
    )


def flows(images: BeforeAfter) -> tuple[Flow, ...]:
    """Find where each changed class's gains came from and its losses went."""
    right = (images.before.predicted == images.labels, images.after.predicted == images.labels)
    sources = _named_counts(images.labels, images.before.predicted, ~right[0] & right[1], images.classes)
    targets = _named_counts(images.labels, images.after.predicted, right[0] & ~right[1], images.classes)
    found = []
    for j in sorted(sources.keys() | targets.keys()):
        gained, lost = sources.get(j, {}), targets.get(j, {})
        found.append(Flow(images.classes[j], sum(gained.values()), gained, sum(lost.values()), lost))
    return tuple(found)


def _class_tests(kinds: Array, classes: tuple[str, ...]) -> tuple[ClassTest, ...]:
    count, lost, gained = (column.astype(int).tolist() for column in (kinds.sum(axis=1), kinds[:, 1], kinds[:, 2]))
    p = [mcnemar(g, b) for g, b in zip(gained, lost, strict=True)]
    detectable = [detectable_change(n, g + b, len(classes)) for n, g, b in zip(count, gained, lost, strict=True)]
    claims = [n >= FEW_IMAGES for n in count]
    rows = zip(classes, gained, lost, p, holm(p), detectable, claims, strict=True)
    return tuple(ClassTest(*row) for row in rows)


def _mean_difference(changes: Array) -> Difference:
    """The mean, with a 95 % interval from the normal distribution."""
    half = 1.96 * changes.std(ddof=1) / np.sqrt(len(changes)) if len(changes) > 1 else 0.0
    return Difference(float(changes.mean()), (float(changes.mean() - half), float(changes.mean() + half)))


def _named_counts(
    labels: Tensor, answers: Tensor, chosen: Tensor, classes: tuple[str, ...]
) -> dict[int, dict[str, int]]:
    """For each class with chosen images (N,) bool: how many of these have each answer, by name."""
    own = torch.stack((labels[chosen], answers[chosen])).numpy()
    pairs, counts = np.unique(own, axis=1, return_counts=True)
    found: dict[int, dict[str, int]] = {}
    for label, value, count in zip(*pairs.tolist(), counts.tolist(), strict=True):
        found.setdefault(label, {})[output_name(value, classes)] = count
    return found
