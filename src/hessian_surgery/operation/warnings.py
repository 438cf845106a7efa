"""Warnings: what limits what can be said about an operation."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.evidence.metrics import class_accuracy, sigma
from hessian_surgery.evidence.paired_tests import FEW_IMAGES
from hessian_surgery.operation.algorithms import algorithm_of
from hessian_surgery.operation.iteration_record import IterationRecord
from hessian_surgery.operation.problem import Problem
from hessian_surgery.types import Array

# How many images of each of two classes must get the other's name before that is told.
SWAPPED = 5

# What is said if no temperature was found.
UNFIT = (
    "recalibrate: no temperature fits the calibration images, as every answer is right; the probabilities are left as "
    "they are"
)


def find_warnings(
    problem: Problem[Any],
    heldout: LabelledSet | None,
    records: Sequence[IterationRecord],
    unrounded: Array,
    calibration: BeforeAfter,
    temperature: float | None = None,
) -> tuple[str, ...]:
    """All warnings about a finished operation.

    Args:
        problem: what was operated on.
        heldout: the held-out images; None if the calibration images judge too, in folds.
        records: of all iterations.
        unrounded: class accuracies (C,) on the calibration images, before rounding.
        calibration: the answers to the calibration images.
        temperature: what the head was divided by, if it was.
    """
    rounded = class_accuracy(calibration.after.predicted, calibration.labels, len(calibration.classes))
    found = (
        *_spike_warnings(problem, records),
        *algorithm_of(problem.config).warnings(problem, records, rounded),
        rare_class_warning(problem.calibration_data, "calibration"),
        None if heldout is None else rare_class_warning(heldout, "held-out"),
        swapped_warning(problem.started, problem.calibration_data.labels, problem.calibration_data.classes),
        cut_off_warning({"calibration": problem.calibration_data, "held-out": heldout}),
        rounding_warning(problem.base, unrounded, rounded),
        UNFIT if problem.config.recalibrate and temperature is None else None,
    )
    return problem.notes + tuple(warning for warning in found if warning)


def rounding_warning(base: Array, unrounded: Array, rounded: Array) -> str | None:
    """How much of the gain rounding to the stored dtype took, if it is a tenth or more."""
    gain = sigma(base) - sigma(unrounded)
    lost = sigma(rounded) - sigma(unrounded)
    if gain <= 0 or lost < 0.1 * gain:
        return None
    return (
        f"rounding to the stored dtype took {100 * lost / gain:.0f} % of the gain: σ on the calibration images is "
        f"{100 * sigma(rounded):.2f} pp, {100 * sigma(unrounded):.2f} before rounding"
    )


def convergence_warning(residuals: list[list[float]], tolerance: float) -> str | None:
    """Which spikes had not converged in some iteration, if any."""
    loose = {i + 1 for row in residuals for i, residual in enumerate(row) if residual > tolerance}
    if not loose:
        return None
    which = ", ".join(map(str, sorted(loose)))
    worst = max(max(row) for row in residuals)
    return f"spikes {which} have not converged (relative residual up to {worst:.2g}, wanted {tolerance:g})"


def rare_class_warning(data: LabelledSet, part: str) -> str | None:
    """Which classes have too few images for a claim, if any."""
    counts = zip(data.classes, data.counts.tolist(), strict=True)
    rare = [f"{name} ({count})" for name, count in counts if count < FEW_IMAGES]
    if not rare:
        return None
    listed = ", ".join(rare[:5]) + (f" and {len(rare) - 5} more" if len(rare) > 5 else "")
    return f"fewer than {FEW_IMAGES} {part} {data.noun} of {listed}: too few for a claim about such a class"


def swapped_warning(predicted: Tensor, labels: Tensor, classes: Sequence[str]) -> str | None:
    """Two classes of which most images get the other's name, if any: their order may be wrong.

    Args:
        predicted: the class predicted for each image (n,).
        labels: the true classes (n,).
        classes: C names.
    """
    count = torch.bincount(labels, minlength=len(classes))
    moved = (predicted != labels) & (predicted < len(classes))
    # Only pairs that occur are counted: a table of all would grow with the square of the classes.
    found, often = torch.stack([labels[moved], predicted[moved]]).unique(dim=1, return_counts=True)
    most = (2 * often > count[found[0]]) & (often >= SWAPPED)
    named = {(first, second) for first, second in found[:, most].T.tolist()}
    pairs = sorted((first, second) for first, second in named if first < second and (second, first) in named)
    if not pairs:
        return None
    first, second = (classes[i] for i in pairs[0])
    more = f", and {len(pairs) - 1} more such pairs" if len(pairs) > 1 else ""
    return f"most of {first} is called {second}, and most of {second} {first}{more}: check the order of the classes"


def cut_off_warning(parts: Mapping[str, LabelledSet | None]) -> str | None:
    """How many texts of each part, by its name, were longer than the model allows, if any."""
    cut = {part: (data, data.cut) for part, data in parts.items() if data is not None and data.cut is not None}
    if not cut:
        return None
    counts = " and ".join(f"{known.texts:,} of {len(data):,} {part} texts" for part, (data, known) in cut.items())
    return f"{counts} were cut off at {max(known.tokens for _, known in cut.values())} tokens"


def _spike_warnings(problem: Problem[Any], records: Sequence[IterationRecord]) -> tuple[str | None, ...]:
    if problem.finder is None:
        return ()
    wanted = problem.finder.count
    fewest = min(sum(value > 0 for value in record.eigenvalues) for record in records)
    return (
        convergence_warning([record.residuals for record in records], problem.config.search.tolerance),
        f"only {fewest} of {wanted} spikes have a positive eigenvalue" if fewest < wanted else None,
    )
