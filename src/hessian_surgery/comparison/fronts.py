"""Fronts: σ and the worst class against accuracy, on held-out images."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.baselines.model_edits import Edit
from hessian_surgery.baselines.outputs import ModelOutputs
from hessian_surgery.comparison.against_bias import AgainstBias, against_bias, figure_of
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
from hessian_surgery.comparison.row import REFERENCES, Row, make_row
from hessian_surgery.comparison.run_context import EntryResult
from hessian_surgery.comparison.terms import describe_terms
from hessian_surgery.comparison.verdicts import count_verdicts
from hessian_surgery.data.labelled import Noun
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.asked import Asked
from hessian_surgery.evidence.difference import Difference
from hessian_surgery.evidence.resampled_pairs import count_by_class
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.short_repr import short_repr


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
        bias_effect: the figure that was aimed at (see `AgainstBias`) of class bias at the headline
            budget, minus that of the original model.
        against_bias: each entry against class bias, at the headline budget.
        bias_shares: by family of directions, the share of each direction's logit change that a
            class bias explains.
        predicted: predictions for all images (S, N), by entry and budget, for other statistics.
        edits: each entry's edits of the model at the headline budget, as fitted on the first split.
        outputs: the original model's outputs.
        protocol: what was compared, and how.
        warnings: what limits what can be said, such as images that are in the training data.
        terms: the goal and limits that every method was held to.
        date: when it was made, UTC.
        model: the module's class.
        data: of the images: how many `images`, and their hash (`sha256`).
        noun: what samples are called: "images", "texts" or "samples".

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
    against_bias: dict[str, AgainstBias]
    bias_shares: dict[str, list[float]]
    predicted: dict[str, Tensor]
    edits: dict[str, tuple[Edit, ...]]
    outputs: ModelOutputs
    protocol: Protocol
    warnings: tuple[str, ...] = ()
    terms: SurgeryConfig = field(default_factory=SurgeryConfig)
    date: str = ""
    model: str = ""
    data: dict[str, dict[str, Any]] = field(default_factory=dict)
    noun: Noun = "images"

    __repr__ = short_repr

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as plain values: fractions, not percent."""
        return {
            "classes": list(self.classes),
            "images": self.images,
            "noun": self.noun,
            "splits": self.splits,
            "headline": self.headline,
            "asked": describe_terms(self.terms),
            "date": self.date,
            "model": self.model,
            "data": self.data,
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


def make_fronts(
    outputs: ModelOutputs,
    results: list[EntryResult],
    splits: list[Split],
    protocol: Protocol,
    terms: SurgeryConfig,
) -> Fronts:
    """Compute all statistics of a comparison from the predictions."""
    pairs = _tallied(outputs, results, splits, protocol.seed, terms)
    nothing = next(t for r, t in pairs if r.name == "nothing")
    bias = next(t for r, t in pairs if r.name == "class-bias" and r.budget == protocol.headline)
    references = {name: [t for r, t in pairs if r.name == name and t.valid.any()] for name in REFERENCES}
    before = outputs.logits.argmax(dim=1).cpu()
    rows: list[Row] = []
    compared: dict[str, AgainstBias] = {}
    for result, found in pairs:
        gaps = {
            name: gap_to_front(found, front, nothing)
            for name, front in references.items()
            if front and found.valid.any() and name != result.name
        }
        row = make_row(result, found, nothing, {name: difference(v) for name, v in gaps.items()}, outputs.classes)
        if "class-bias" in gaps:
            row = replace(row, beyond=_beyond(found, [nothing, *references["class-bias"]]))
        if result.name in (*WHOLE, "class-bias") and row.splits and (result.budget or 0.0) >= 0:
            answers = (before, result.predicted, outputs.labels.cpu(), outputs.classes)
            asked = Asked(terms.target, result.budget, terms.targets)
            row = replace(row, verdicts=count_verdicts(*answers, splits, asked))
        if terms.targets and row.splits:
            row = replace(row, missed=float(np.nanmean(found.missed[0])))
        rows.append(row)
        if "class-bias" in gaps and result.budget in (None, protocol.headline):
            compared[result.name] = against_bias(gaps["class-bias"], found, bias, nothing, terms)
    return Fronts(
        classes=outputs.classes,
        images=len(outputs.labels),
        splits=len(splits),
        headline=protocol.headline,
        base=_base_figures(nothing),
        rows=tuple(rows),
        at_headline=_at_headline(pairs, nothing, protocol.headline),
        bias_effect=difference(mean_gap(figure_of(bias, terms), figure_of(nothing, terms))),
        against_bias=compared,
        bias_shares={name: family.bias_share().tolist() for name, family in outputs.directions.items()},
        predicted={f"{r.name}@{r.budget}": r.predicted.to(torch.int16) for r in results},
        edits={r.name: r.edits for r in results if r.budget == protocol.headline and r.edits},
        outputs=outputs,
        terms=terms,
        protocol=protocol,
    )


def _tallied(
    outputs: ModelOutputs, results: list[EntryResult], splits: list[Split], seed: int, terms: SurgeryConfig
) -> list[tuple[EntryResult, Tally]]:
    """Each result with its figures; all see the same resamples."""
    labels = outputs.labels.cpu().numpy()
    classes = len(outputs.classes)
    weights = draw_weights(labels, seed, count_resamples(classes))
    heldout = np.zeros((len(splits), len(labels)), dtype=bool)
    for i, split in enumerate(splits):
        heldout[i, split.heldout.numpy()] = True
    counts = count_by_class(heldout, labels, weights, classes)
    targets = {outputs.classes.index(name): value for name, value in terms.targets.items()}
    return [(r, tally(r.predicted.numpy(), labels, heldout, weights, classes, counts, targets)) for r in results]


def _beyond(found: Tally, front: list[Tally]) -> Difference:
    """Accuracy minus the highest on a front, as it is on the images themselves."""
    highest = max(front, key=lambda point: float(np.nanmean(point.accuracy[0])))
    return difference(mean_gap(found.accuracy, highest.accuracy))


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


def _base_figures(nothing: Tally) -> dict[str, float]:
    names = {"accuracy": "accuracy", "sigma": "sigma", "worst": "worst", "balanced_accuracy": "balanced"}
    names["sigma_corrected"] = "clean"
    return {name: float(np.nanmean(getattr(nothing, field)[0])) for name, field in names.items()}
