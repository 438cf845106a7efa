"""Fronts: σ and the worst class against accuracy, on held-out images."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.baselines.model_edits import Edit
from hessian_surgery.baselines.outputs import ModelOutputs
from hessian_surgery.comparison.bootstrap import (
    Tally,
    count_resamples,
    difference,
    draw_weights,
    front_at_loss,
    gap_to_front,
    mean_gap,
    tally,
)
from hessian_surgery.comparison.entries import WHOLE
from hessian_surgery.comparison.protocol import Protocol, Split
from hessian_surgery.comparison.run_entry import EntryResult
from hessian_surgery.comparison.verdicts import count_verdicts
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.difference import Difference
from hessian_surgery.evidence.resampled_pairs import count_by_class
from hessian_surgery.short_repr import short_repr
from hessian_surgery.types import Array

# The entries that every row is compared with, at equal accuracy.
REFERENCES = ("class-bias", "spikes")


@dataclass(frozen=True)
class Row:
    """One entry at one budget: means over splits, on held-out images. Fractions, not percent.

    Attributes:
        name: the entry's name.
        budget: accuracy that it may give up on the calibration images; None if it has one point.
        splits: how many splits it was judged on.
        delta_accuracy: accuracy minus that of the original model.
        sigma: σ of the class accuracies, as measured.
        sigma_se: standard error of `sigma`, by a bootstrap over images.
        sigma_spread: standard deviation of `sigma` over splits.
        worst: the worst class's accuracy.
        balanced_accuracy: mean of the class accuracies.
        seconds: seconds to prepare once and to fit one split.
        paired: by entry, σ minus the σ of that entry's front at this row's accuracy, both without
            sampling noise, with 95 % intervals.
        reasons: why it failed, by split.
        sigma_change: σ minus that of the original model, both without sampling noise, with its
            95 % interval; None if there are no figures.
        verdicts: for a whole operation, how many splits have each verdict.

    Example:
        >>> row = fronts.row("class-bias", fronts.headline)
        >>> row.name, row.splits
        ('class-bias', 2)
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
    verdicts: dict[str, int] = field(default_factory=dict)

    __repr__ = short_repr

    def as_dict(self) -> dict[str, Any]:
        """Return what `compare --json` prints; a row without figures has nulls and a reason."""
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
            "verdicts": self.verdicts,
            "reason": next(iter(self.reasons.values()), None),
            "failed_splits": sorted(self.reasons),
        }


@dataclass(frozen=True)
class Gain:
    """An entry against class bias, by resample (R + 1,); the first value is the images themselves.

    Every σ is without sampling noise.

    Attributes:
        sigma: σ minus that of class bias at the same accuracy.
        sigma_at_budget: σ minus that of class bias at the same budget.
        accuracy: accuracy minus that of class bias at the same budget.
        sigma_change: σ minus that of the original model.
        accuracy_change: accuracy minus that of the original model.
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
        base: σ with and without sampling noise, worst class, balanced accuracy and accuracy of the
            original model, on held-out images.
        rows: one per entry and budget.
        at_headline: by entry with budgets, σ where just the headline budget is lost, against the
            original model and against class bias there; both without sampling noise.
        bias_effect: σ of class bias at the headline budget minus that of the original model, both
            without sampling noise.
        gains: each entry against class bias, at the headline budget.
        bias_shares: by family of directions, the share of each direction's logit change that a
            class bias explains.
        predicted: predictions for all images (S, N), by entry and budget, for other statistics.
        edits: each entry's edits of the model at the headline budget, as fitted on the first split.
        outputs: the original model's outputs.
        warnings: what limits what can be said, such as images that are in the training data.

    Example:
        >>> fronts.row("class-bias", fronts.headline).sigma < fronts.base["sigma"]
        True
    """

    classes: tuple[str, ...]
    images: int
    splits: int
    headline: float
    base: dict[str, float]
    rows: tuple[Row, ...]
    at_headline: dict[str, dict[str, Difference]]
    bias_effect: Difference
    gains: dict[str, Gain]
    bias_shares: dict[str, list[float]]
    predicted: dict[str, Tensor]
    edits: dict[str, tuple[Edit, ...]]
    outputs: ModelOutputs
    warnings: tuple[str, ...] = ()

    __repr__ = short_repr

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as plain values: fractions, not percent."""
        return {
            "classes": list(self.classes),
            "images": self.images,
            "splits": self.splits,
            "headline": self.headline,
            "base": self.base,
            "methods": [row.as_dict() for row in self.rows],
            "at_headline": {
                name: {key: vars(value) for key, value in found.items()} for name, found in self.at_headline.items()
            },
            "bias_shares": self.bias_shares,
            "warnings": list(self.warnings),
        }

    def row(self, name: str, budget: float | None = None) -> Row:
        """Return the row of an entry at a budget.

        Raises:
            InputError: there is no such row.
        """
        found = next((row for row in self.rows if row.name == name and row.budget == budget), None)
        if found is None:
            known = ", ".join(sorted({f"{row.name} at {row.budget}" for row in self.rows}))
            raise InputError(f"name: there is no row for {name!r} at a budget of {budget}; there are {known}")
        return found


def make_fronts(outputs: ModelOutputs, results: list[EntryResult], splits: list[Split], protocol: Protocol) -> Fronts:
    """Compute all statistics of a comparison from the predictions."""
    labels = outputs.labels.cpu().numpy()
    classes = len(outputs.classes)
    weights = draw_weights(labels, protocol.seed, count_resamples(classes))
    heldout = np.zeros((len(splits), len(labels)), dtype=bool)
    for i, split in enumerate(splits):
        heldout[i, split.heldout.numpy()] = True
    counts = count_by_class(heldout, labels, weights, classes)
    tallies = [tally(result.predicted.numpy(), labels, heldout, weights, classes, counts) for result in results]
    pairs = list(zip(results, tallies, strict=True))
    nothing = next(t for r, t in pairs if r.name == "nothing")
    bias = next(t for r, t in pairs if r.name == "class-bias" and r.budget == protocol.headline)
    references = {name: [t for r, t in pairs if r.name == name and t.valid.any()] for name in REFERENCES}
    before = outputs.logits.argmax(dim=1).cpu()
    rows: list[Row] = []
    gains: dict[str, Gain] = {}
    for result, found in pairs:
        gaps = {
            name: gap_to_front(found, front, nothing)
            for name, front in references.items()
            if front and found.valid.any() and name != result.name
        }
        row = _make_row(result, found, nothing, {name: difference(values) for name, values in gaps.items()})
        if result.name in WHOLE and row.splits:
            answers = (before, result.predicted, outputs.labels.cpu(), outputs.classes)
            row = replace(row, verdicts=count_verdicts(*answers, splits, result.budget))
        rows.append(row)
        if "class-bias" in gaps and result.budget in (None, protocol.headline):
            gains[result.name] = _make_gain(gaps["class-bias"], found, bias, nothing)
    return Fronts(
        classes=outputs.classes,
        images=len(labels),
        splits=len(splits),
        headline=protocol.headline,
        base=_base_figures(nothing),
        rows=tuple(rows),
        at_headline=_at_headline(pairs, nothing, protocol.headline),
        bias_effect=difference(mean_gap(bias.clean, nothing.clean)),
        gains=gains,
        bias_shares={name: family.bias_share().tolist() for name, family in outputs.directions.items()},
        predicted={f"{r.name}@{r.budget}": r.predicted.to(torch.int16) for r in results},
        edits={r.name: r.edits for r in results if r.budget == protocol.headline and r.edits},
        outputs=outputs,
    )


def _at_headline(
    pairs: list[tuple[EntryResult, Tally]], nothing: Tally, loss: float
) -> dict[str, dict[str, Difference]]:
    """Every front where just the headline budget is lost; see `Fronts.at_headline`."""
    fronts: dict[str, list[Tally]] = {}
    for result, found in pairs:
        if result.budget is not None:
            fronts.setdefault(result.name, []).append(found)
    # Means must be over the same splits: an entry that failed on one has no figure here.
    whole = {name: front for name, front in fronts.items() if all(point.valid.all() for point in front)}
    levels = {name: front_at_loss(front, nothing, loss) for name, front in whole.items()}
    start = np.nanmean(nothing.clean, axis=1)
    return {
        name: {
            "sigma_change": difference(level - start),
            "against_class_bias": difference(level - levels["class-bias"]),
        }
        for name, level in levels.items()
        if "class-bias" in levels
    }


def _make_gain(gap: Array, found: Tally, bias: Tally, nothing: Tally) -> Gain:
    return Gain(
        sigma=gap,
        sigma_at_budget=mean_gap(found.clean, bias.clean),
        accuracy=mean_gap(found.accuracy, bias.accuracy),
        sigma_change=mean_gap(found.clean, nothing.clean),
        accuracy_change=mean_gap(found.accuracy, nothing.accuracy),
    )


def _make_row(result: EntryResult, found: Tally, nothing: Tally, paired: dict[str, Difference]) -> Row:
    valid = found.valid
    if not valid.any():
        nan = float("nan")
        return Row(result.name, result.budget, 0, nan, nan, nan, nan, nan, nan, result.seconds, {}, result.reasons)
    sigma = found.sigma[:, valid]
    return Row(
        name=result.name,
        budget=result.budget,
        splits=int(valid.sum()),
        delta_accuracy=float((found.accuracy - nothing.accuracy)[0, valid].mean()),
        sigma=float(sigma[0].mean()),
        sigma_se=float(sigma[1:].mean(axis=1).std(ddof=1)),
        sigma_spread=float(sigma[0].std(ddof=1)) if valid.sum() > 1 else 0.0,
        worst=float(found.worst[0, valid].mean()),
        balanced_accuracy=float(found.balanced[0, valid].mean()),
        seconds=result.seconds,
        paired=paired,
        reasons=result.reasons,
        sigma_change=difference(mean_gap(found.clean, nothing.clean)),
    )


def _base_figures(nothing: Tally) -> dict[str, float]:
    names = {"accuracy": "accuracy", "sigma": "sigma", "worst": "worst", "balanced_accuracy": "balanced"}
    names["sigma_corrected"] = "clean"
    return {name: float(np.nanmean(getattr(nothing, field)[0])) for name, field in names.items()}
