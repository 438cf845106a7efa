"""The methods of tables 7 and 13 on one split: trainings, τ-normalization, logit adjustment."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.sources import Parts
from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.evidence.metrics import compute_metrics
from hessian_surgery.evidence.paired_tests import paired_tests
from hessian_surgery.model.classifier import as_classifier
from hessian_surgery.model.evaluation import answers_of
from hessian_surgery.model.head import find_head
from hessian_surgery.operation.ladder import prior_shift
from hessian_surgery.reproduce.item import Measured
from hessian_surgery.reproduce.loop_rows import changes, class_percent, percent
from hessian_surgery.reproduce.loop_runs import changes_of
from hessian_surgery.reproduce.row import Row, change_row, claim_row, mean_interval, shown_row
from hessian_surgery.reproduce.workbench import Workbench

# The τ that the paper sweeps.
TAUS = tuple(step / 4 for step in range(1, 9))


def trained(bench: Workbench, split: int, training: str) -> Measured:
    """A fine-tuned network against the starting one, on the held-out images."""
    heldout = bench.parts(split).heldout
    return _against_start(heldout, bench.logits(heldout), bench.logits(heldout, training), split)


def tau_normalized(bench: Workbench, split: int) -> Measured:
    """w_c ← w_c / ‖w_c‖^τ with the bias as it is; τ has the lowest σ on the calibration images."""
    parts = bench.parts(split)
    classifier = as_classifier(bench.model())
    head = find_head(classifier, parts.calibration.fetch(torch.arange(2)))
    assert head is not None  # as every network here
    assert head.module.bias is not None
    length = head.module.weight.detach().norm(dim=1).cpu()
    bias = head.module.bias.detach().cpu()

    def edited(logits: Tensor, tau: float) -> Tensor:
        return (logits - bias) * length**-tau + bias

    found = _best_tau(bench, parts, edited, split)
    return found | {"lengths": [float(length.min()), float(length.max())]}


def logit_adjusted(bench: Workbench, split: int) -> Measured:
    """z − τ log π with the training set's class shares π, as for `tau_normalized`."""
    shift = _shift(bench)
    return _best_tau(bench, bench.parts(split), lambda logits, tau: logits + tau * shift, split)


def adjusted_at(bench: Workbench, split: int, tau: float) -> dict[str, float]:
    """Accuracy of the largest class after logit adjustment, on logits and on probabilities."""
    data = bench.parts(split).heldout
    shift = tau * _shift(bench)
    logits = bench.logits(data)
    of_largest = data.labels == int(shift.argmin())

    def right(scores: Tensor) -> float:
        return float((scores.argmax(dim=1) == data.labels)[of_largest].double().mean())

    probabilities = logits.softmax(dim=1)
    return {
        "start": right(logits),
        "logits": right(logits + shift),
        "probabilities": right(probabilities + shift),
    }


def _best_tau(bench: Workbench, parts: Parts, edited: Callable[[Tensor, float], Tensor], split: int) -> Measured:
    calibration, heldout = (bench.logits(data) for data in (parts.calibration, parts.heldout))
    labels = parts.calibration.labels

    def sigma(tau: float) -> float:
        return compute_metrics(edited(calibration, tau).argmax(dim=1), labels, len(parts.calibration.classes)).sigma

    best = min(TAUS, key=sigma)
    return _against_start(parts.heldout, heldout, edited(heldout, best), split) | {"tau": best}


def _shift(bench: Workbench) -> Tensor:
    """Minus the logarithm of each class's share of the training images (C,)."""
    return prior_shift(bench.source.part("train", "data").counts, len(bench.classes)).float()


def _against_start(data: LabelledSet, start: Tensor, now: Tensor, seed: int) -> Measured:
    """Metrics before and after, and the changes with intervals, in the form of `loop_run`."""
    answers = (answers_of(logits, data.labels) for logits in (start, now))
    images = BeforeAfter(data.classes, data.index, data.labels, *answers)
    before, after = images.metrics()
    return {
        "classes": list(data.classes),
        "before": before.as_dict(),
        "after": after.as_dict(),
        "changes": changes_of(paired_tests(images, seed)),
    }


def method_rows(label: str, runs: Sequence[Measured], paper: dict[str, float | None], other: str) -> list[Row]:
    """The rows of one method: accuracy and σ as they are, the change of σ, and single classes.

    Args:
        label: the method.
        runs: what each split gave.
        paper: its numbers: `accuracy`, `sigma`, `change`, and accuracies by class.
        other: why absolute numbers cannot be compared.
    """
    rows = [
        shown_row(f"{label}: accuracy", "%", paper.get("accuracy"), percent(runs, "after", "accuracy"), other),
        shown_row(f"{label}: σ", "pp", paper.get("sigma"), percent(runs, "after", "sigma"), other),
    ]
    ours, intervals = changes(runs, "sigma")
    change = paper.get("change")
    if change:
        rows.append(change_row(f"{label}: change of σ, without sampling noise", "pp", change, ours, intervals))
    elif change is not None:
        rows.append(no_change_row(f"{label}: change of σ", ours, intervals))
    for name, theirs in paper.items():
        if name in runs[0]["classes"]:
            rows.append(shown_row(f"{label}: {name}", "%", theirs, class_percent(runs, "after", name), other))
    return rows


def no_change_row(label: str, ours: Sequence[float], intervals: Sequence[tuple[float, float]]) -> Row:
    """A change that the paper finds to be exactly 0."""
    holds = max(map(abs, ours)) <= 1e-9
    return claim_row(label, "pp", 0.0, ours, holds, "exactly 0 on every split", mean_interval(intervals))
