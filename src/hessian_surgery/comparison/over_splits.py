"""Run an entry of a comparison on every split, with or without budgets."""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hessian_surgery.comparison.entries import Entry
from hessian_surgery.comparison.kept_splits import DoneSplit, Predictions
from hessian_surgery.comparison.protocol import Split
from hessian_surgery.comparison.run_context import EntryResult, RunContext
from hessian_surgery.errors import FileError, InputError


def run_with_budgets(
    entry: Entry, context: RunContext, budgets: Sequence[float | None], predict: Callable[[Split], Predictions]
) -> list[EntryResult]:
    """Run an entry on every split, at every budget; but for the splits that are kept."""
    kept = context.kept.get(entry.name)
    done = [] if kept is None else list(kept.done)
    left = context.left(entry.name)
    context.observer.stage(entry.name, 0, max(1, len(left)))
    for i, split in enumerate(left, start=1):
        started = time.perf_counter()
        done.append(DoneSplit(predict(split), time.perf_counter() - started))
        if kept is not None:
            kept.save(done)
        context.observer.stage(entry.name, i, len(left))
    return [_result(entry, context, budget, done) for budget in budgets]


def _result(entry: Entry, context: RunContext, budget: float | None, done: Sequence[DoneSplit]) -> EntryResult:
    """An entry's result at one budget, from what was found on each split."""
    predicted = torch.full((len(done), len(context.base.labels)), -1)
    reasons: dict[int, str] = {}
    for i, split in enumerate(done):
        found = split.predicted[budget]
        if isinstance(found, str):
            reasons[i] = found
        else:
            predicted[i] = found.cpu()
    seconds = context.seconds_before + sum(split.seconds for split in done) / len(done)
    return EntryResult(entry.name, budget, predicted, reasons, seconds)


def run_without_budget(entry: Entry, context: RunContext, predict: Callable[[Split], Tensor]) -> EntryResult:
    """Run an entry that has a single point."""

    def predict_point(split: Split) -> Predictions:
        try:
            return {None: predict(split)}
        except FileError:
            raise
        except InputError as reason:
            return {None: str(reason)}

    (result,) = run_with_budgets(entry, context, (None,), predict_point)
    return result


def failed_result(entry: Entry, splits: int, images: int, reason: str) -> EntryResult:
    """Make the result of an entry that failed on every split."""
    return EntryResult(entry.name, None, torch.full((splits, images), -1), dict.fromkeys(range(splits), reason), 0.0)
