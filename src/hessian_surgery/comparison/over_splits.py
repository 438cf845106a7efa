"""Run an entry of a comparison on every split, with or without budgets."""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hessian_surgery.comparison.entries import Entry
from hessian_surgery.comparison.kept_splits import DoneSplit, KeptSplits, Predictions
from hessian_surgery.comparison.protocol import Split
from hessian_surgery.comparison.run_context import EntryResult, RunContext
from hessian_surgery.errors import FileError, InputError


def run_with_budgets(
    entry: Entry,
    context: RunContext,
    budgets: Sequence[float | None],
    predict: Callable[[Split], Predictions],
    kept: KeptSplits | None = None,
) -> list[EntryResult]:
    """Run an entry on every split, at every budget; but for the splits that are `kept`."""
    count = len(context.splits)
    predicted = {budget: torch.full((count, len(context.base.labels)), -1) for budget in budgets}
    reasons: dict[float | None, dict[int, str]] = {budget: {} for budget in budgets}
    done = [] if kept is None else kept.load(budgets)[:count]
    known = len(done)
    left = max(1, count - known)
    context.observer.stage(entry.name, 0, left)
    for i, split in enumerate(context.splits):
        if i == len(done):
            started = time.perf_counter()
            done.append(DoneSplit(predict(split), time.perf_counter() - started))
            if kept is not None:
                kept.save(done)
            context.observer.stage(entry.name, i + 1 - known, left)
        for budget, found in done[i].predicted.items():
            if isinstance(found, str):
                reasons[budget][i] = found
            else:
                predicted[budget][i] = found.cpu()
    context.observer.stage(entry.name, left, left)
    seconds = context.seconds_before + sum(split.seconds for split in done) / count
    return [EntryResult(entry.name, budget, predicted[budget], reasons[budget], seconds) for budget in budgets]


def run_without_budget(
    entry: Entry, context: RunContext, predict: Callable[[Split], Tensor], kept: KeptSplits | None = None
) -> EntryResult:
    """Run an entry that has a single point."""

    def predict_point(split: Split) -> Predictions:
        try:
            return {None: predict(split)}
        except FileError:
            raise
        except InputError as reason:
            return {None: str(reason)}

    (result,) = run_with_budgets(entry, context, (None,), predict_point, kept)
    return result


def failed_result(entry: Entry, splits: int, images: int, reason: str) -> EntryResult:
    """Make the result of an entry that failed on every split."""
    return EntryResult(entry.name, None, torch.full((splits, images), -1), dict.fromkeys(range(splits), reason), 0.0)
