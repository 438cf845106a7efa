"""Fronts: σ and the worst class against accuracy on held-out images, with intervals from a bootstrap over images."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.baselines.choice import unbeaten
from hessian_surgery.baselines.edits import Edit
from hessian_surgery.baselines.subject import Subject
from hessian_surgery.comparison.protocol import Half, Protocol
from hessian_surgery.comparison.running import Outcome
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.paired_tests import Difference
from hessian_surgery.seeding import numpy_generator
from hessian_surgery.types import Array

RESAMPLES = 2000
# What every row is compared with at equal accuracy.
REFERENCES = ("class-bias", "surgery")


@dataclass(frozen=True)
class Row:
    """One entry at one budget, on held-out images, the mean over splits. Fractions, not percent.

    Attributes:
        name: of the entry.
        budget: accuracy that it might give up on the calibration half; None where it has one point.
        splits: how many splits it was judged on.
        delta_accuracy: against the model as it is.
        sigma: σ of the class accuracies.
        sigma_se: its standard error, by a bootstrap over images.
        sigma_spread: its standard deviation over splits.
        worst: the worst class's accuracy.
        balanced_accuracy: mean of the class accuracies.
        seconds: preparing once and fitting on one split.
        paired: difference of σ to other entries' fronts at this row's accuracy, with 95 % intervals.
        reasons: why it failed, by split.
        sigma_change: σ less that of the model as it is, with its 95 % interval; None where there are no figures.
    """

    name: str
    budget: float | None
    splits: int
    delta_accuracy: float
    sigma: float
    sigma_se: float
    sigma_spread: float
    worst: float
    balanced_accuracy: float
    seconds: float
    paired: dict[str, Difference]
    reasons: dict[int, str]
    sigma_change: Difference | None = None

    def as_dict(self) -> dict[str, Any]:
        """The form that `compare --json` prints; a row that has no figures gives null and the reason."""
        names = ("delta_accuracy", "sigma", "sigma_se", "sigma_spread", "worst", "balanced_accuracy")
        figures = {name: getattr(self, name) if self.splits else None for name in names}
        paired = {f"paired_vs_{name.replace('-', '_')}": vars(found) for name, found in self.paired.items()}
        return {
            "name": self.name,
            "budget": self.budget,
            "splits": self.splits,
            **figures,
            "seconds": self.seconds,
            **{f"paired_vs_{name.replace('-', '_')}": None for name in REFERENCES},
            **paired,
            "sigma_change": vars(self.sigma_change) if self.sigma_change else None,
            "reason": next(iter(self.reasons.values()), None),
            "failed_splits": sorted(self.reasons),
        }


@dataclass(frozen=True)
class Gain:
    """An entry against class bias in every resample of the images (R + 1,); the first is the images themselves.

    Attributes:
        sigma: σ less that of class bias at the same accuracy.
        sigma_at_budget: σ less that of class bias at the same budget.
        accuracy: accuracy less that of class bias at the same budget.
        sigma_change: σ less that of the model as it is.
        accuracy_change: accuracy less that of the model as it is.
    """

    sigma: Array
    sigma_at_budget: Array
    accuracy: Array
    sigma_change: Array
    accuracy_change: Array


@dataclass(frozen=True)
class Fronts:
    """A finished comparison.

    Attributes:
        classes: class names.
        images: N.
        splits: S.
        headline: the budget that the advice is about.
        base: σ, worst class, balanced accuracy and accuracy of the model as it is, on held-out halves.
        rows: one per entry and budget.
        bias_effect: σ of class bias at the headline budget less that of the model as it is.
        gains: of each entry at the headline budget over class bias.
        bias_shares: per family of directions, the share of each one's logit change that a class bias explains.
        predicted: the answer to each image (S, N), by entry and budget, for whoever wants other statistics.
        edits: what each entry does to the model at the headline budget, as fitted on the first split.
        subject: what was computed once.
    """

    classes: tuple[str, ...]
    images: int
    splits: int
    headline: float
    base: dict[str, float]
    rows: tuple[Row, ...]
    bias_effect: Difference
    gains: dict[str, Gain]
    bias_shares: dict[str, list[float]]
    predicted: dict[str, Tensor]
    edits: dict[str, tuple[Edit, ...]]
    subject: Subject

    def as_dict(self) -> dict[str, Any]:
        """Its figures as plain values: fractions, not percent."""
        return {
            "classes": list(self.classes),
            "images": self.images,
            "splits": self.splits,
            "headline": self.headline,
            "base": self.base,
            "methods": [row.as_dict() for row in self.rows],
            "bias_shares": self.bias_shares,
        }

    def row(self, name: str, budget: float | None = None) -> Row:
        """The row of an entry at a budget."""
        found = next((row for row in self.rows if row.name == name and row.budget == budget), None)
        if found is None:
            there = ", ".join(sorted({f"{row.name} at {row.budget}" for row in self.rows}))
            raise InputError(f"name: there is no row for {name!r} at a budget of {budget}; there are {there}")
        return found


@dataclass(frozen=True)
class Tally:
    """Figures of one outcome for each resample of the images and each split (R + 1, S); the first row is the images
    themselves. NaN in splits that have no answers.
    """

    accuracy: Array
    sigma: Array
    worst: Array
    balanced: Array

    @property
    def valid(self) -> Array:
        """Which splits have answers (S,)."""
        return ~np.isnan(self.sigma[0])


def weigh(subject: Subject, outcomes: list[Outcome], halves: list[Half], protocol: Protocol) -> Fronts:
    """All statistics of a comparison, from the answers to each image."""
    labels, classes = subject.labels.cpu().numpy(), len(subject.classes)
    weights = resampled(labels, protocol.seed)
    held = np.zeros((len(halves), len(labels)), dtype=bool)
    for i, half in enumerate(halves):
        held[i, half.held.numpy()] = True
    tallies = [tally(outcome.predicted.numpy(), labels, held, weights, classes) for outcome in outcomes]
    pairs = list(zip(outcomes, tallies, strict=True))
    nothing = next(t for o, t in pairs if o.name == "nothing")
    curves = {name: [t for o, t in pairs if o.name == name and t.valid.any()] for name in REFERENCES}
    rows, gains = [], dict[str, Gain]()
    bias = next(t for o, t in pairs if o.name == "class-bias" and o.budget == protocol.headline)
    for outcome, found in pairs:
        gaps = {
            name: gap(found, curve, nothing)
            for name, curve in curves.items()
            if curve and found.valid.any() and name != outcome.name
        }
        rows.append(_row(outcome, found, nothing, {name: difference(values) for name, values in gaps.items()}))
        if "class-bias" in gaps and outcome.budget in (None, protocol.headline):
            sides = [
                _mean_gap(getattr(found, name), getattr(other, name))
                for other in (bias, nothing)
                for name in ("sigma", "accuracy")
            ]
            gains[outcome.name] = Gain(gaps["class-bias"], *sides)
    return Fronts(
        classes=subject.classes,
        images=len(labels),
        splits=len(halves),
        headline=protocol.headline,
        base=_base(nothing),
        rows=tuple(rows),
        bias_effect=difference(_mean_gap(bias.sigma, nothing.sigma)),
        gains=gains,
        bias_shares={name: family.bias_share().tolist() for name, family in subject.directions.items()},
        predicted={f"{o.name}@{o.budget}": o.predicted.to(torch.int16) for o in outcomes},
        edits={o.name: o.edits for o in outcomes if o.budget == protocol.headline and o.edits},
        subject=subject,
    )


def resampled(labels: Array, seed: int, resamples: int = RESAMPLES) -> Array:
    """How often each image occurs (R + 1, N): once in the first row, then in resamples drawn within each class."""
    draw = numpy_generator(seed, "compare-bootstrap")
    weights = np.ones((resamples + 1, len(labels)))
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        weights[1:, members] = draw.multinomial(len(members), np.full(len(members), 1 / len(members)), resamples)
    return weights


def tally(predicted: Array, labels: Array, held: Array, weights: Array, classes: int) -> Tally:
    """Figures of answers (S, N) on held-out images (S, N) under image weights (R + 1, N)."""
    right = ((predicted == labels) & held).astype(np.float64)
    hits, counts = np.empty((2, len(weights), len(held), classes))
    for label in range(classes):
        members = labels == label
        hits[:, :, label] = weights[:, members] @ right[:, members].T
        counts[:, :, label] = weights[:, members] @ held[:, members].T.astype(np.float64)
    # A resample that has no held-out image of a class says nothing new about it.
    with np.errstate(invalid="ignore", divide="ignore"):
        own = np.broadcast_to(hits[0] / counts[0], hits.shape).copy()
        rate = np.divide(hits, counts, out=own, where=counts > 0)
        rate[:, (predicted < 0).all(axis=1)] = np.nan
        accuracy = np.where(np.isnan(rate).any(axis=2), np.nan, hits.sum(axis=2) / counts.sum(axis=2))
    return Tally(accuracy, rate.std(axis=2), rate.min(axis=2), rate.mean(axis=2))


def gap(found: Tally, curve: list[Tally], nothing: Tally) -> Array:
    """σ less that of a front at the same accuracy, for each resample (R + 1,), over the splits that both have."""
    both = found.valid & np.all([point.valid for point in curve], axis=0)
    if not both.any():
        return np.full(len(found.sigma), np.nan)

    def mean(values: Array) -> Array:
        averaged: Array = values[:, both].mean(axis=1)
        return averaged

    accuracy, sigma = (np.stack([mean(getattr(p, name)) for p in (nothing, *curve)]) for name in ("accuracy", "sigma"))
    # The points that make up the front are those of the images themselves: chosen anew in every resample, the model as
    # it is would be among them in some and not in others, and the front would jump.
    kept = unbeaten(accuracy[:, 0], sigma[:, 0])
    front = [at_accuracy(*point) for point in zip(accuracy[kept].T, sigma[kept].T, mean(found.accuracy), strict=True)]
    return mean(found.sigma) - np.array(front)


def at_accuracy(accuracy: Array, sigma: Array, wanted: float) -> float:
    """σ at an accuracy, by straight lines between points (P,); beyond either end it is the end's."""
    order = np.argsort(accuracy)
    return float(np.interp(wanted, accuracy[order], sigma[order]))


def _row(outcome: Outcome, found: Tally, nothing: Tally, paired: dict[str, Difference]) -> Row:
    valid = found.valid
    if not valid.any():
        nan = float("nan")
        return Row(outcome.name, outcome.budget, 0, nan, nan, nan, nan, nan, nan, outcome.seconds, {}, outcome.reasons)
    sigma = found.sigma[:, valid]
    return Row(
        name=outcome.name,
        budget=outcome.budget,
        splits=int(valid.sum()),
        delta_accuracy=float((found.accuracy - nothing.accuracy)[0, valid].mean()),
        sigma=float(sigma[0].mean()),
        sigma_se=float(sigma[1:].mean(axis=1).std(ddof=1)),
        sigma_spread=float(sigma[0].std(ddof=1)) if valid.sum() > 1 else 0.0,
        worst=float(found.worst[0, valid].mean()),
        balanced_accuracy=float(found.balanced[0, valid].mean()),
        seconds=outcome.seconds,
        paired=paired,
        reasons=outcome.reasons,
        sigma_change=difference(_mean_gap(found.sigma, nothing.sigma)),
    )


def _base(nothing: Tally) -> dict[str, float]:
    names = {"accuracy": "accuracy", "sigma": "sigma", "worst": "worst", "balanced_accuracy": "balanced"}
    return {name: float(np.nanmean(getattr(nothing, field)[0])) for name, field in names.items()}


def _mean_gap(one: Array, other: Array) -> Array:
    """The difference of two figures in each resample (R + 1,), over the splits that both have."""
    both = ~np.isnan(one[0] - other[0])
    gap: Array = (one - other)[:, both].mean(axis=1) if both.any() else np.full(len(one), np.nan)
    return gap


def difference(values: Array, level: float = 0.05) -> Difference:
    """The first value with the interval that the others, resamples, leave `level` outside of.

    The resamples are shifted to the value: a resample adds sampling noise to a σ that holds some already, and more to a
    small σ than to a large one, so that their own middle lies too near to zero.
    """
    low, high = np.percentile(values[1:], (50 * level, 100 - 50 * level)) - (values[1:].mean() - values[0])
    return Difference(float(values[0]), (float(low), float(high)))
