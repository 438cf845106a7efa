"""Run one entry of a comparison on every split."""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hessian_surgery.baselines.finetune import FINETUNES, finetune
from hessian_surgery.baselines.model_edits import ChainState, Edit, WeightStep, apply_edits
from hessian_surgery.baselines.posthoc import Offer
from hessian_surgery.comparison.compared_model import ComparedModel
from hessian_surgery.comparison.entries import OPERATIONS, WHOLE, Entry, posthoc_method
from hessian_surgery.comparison.protocol import Protocol, Split
from hessian_surgery.comparison.run_context import EntryResult, RunContext
from hessian_surgery.data.checks import require_images
from hessian_surgery.errors import InputError
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.operation.algorithms import algorithm_of
from hessian_surgery.operation.driver import run
from hessian_surgery.operation.iteration import try_proposal
from hessian_surgery.operation.iteration_record import IterationRecord
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.problem import Problem, prepare
from hessian_surgery.operation.proposal import decide, operation_goal, survey
from hessian_surgery.paper.config import as_loop

# By budget, or under None for an entry that has no budgets: predictions for all images (N,), or why
# there are none.
Predictions: TypeAlias = dict[float | None, Tensor | str]


def run_entry(entry: Entry, context: RunContext, model: ComparedModel, folder: Path | None) -> list[EntryResult]:
    """Run one entry on every split; a training at its end saves its state in `folder`."""
    if entry.last:
        return _run_trained(entry, context, model, folder)
    if entry.methods and entry.methods[0] in WHOLE:
        return _run_whole(entry, context, model)
    return run_from_outputs(entry, context)


def run_from_outputs(entry: Entry, context: RunContext) -> list[EntryResult]:
    """Run an entry that needs only the model's outputs: post-hoc methods, or nothing."""
    if entry.methods:
        return _run_posthoc(entry, context)
    predicted = context.outputs.logits.argmax(dim=1).cpu()
    return [_run_without_budget(entry, context, lambda _: predicted)]


def _run_posthoc(entry: Entry, context: RunContext) -> list[EntryResult]:
    """Fit a chain of post-hoc methods to each split's calibration images, at each budget."""
    budgets = context.protocol.budgets
    edits: dict[float | None, tuple[Edit, ...]] = {}

    def predict(split: Split) -> Predictions:
        ends = fit_chain(entry, context, split, budgets)
        if split is context.splits[0] and not entry.trunk:
            edits.update({budget: end.edits for budget, end in ends.items() if isinstance(end, ChainState)})
        return {budget: end if isinstance(end, str) else end.logits.argmax(dim=1) for budget, end in ends.items()}

    results = _run_with_budgets(entry, context, budgets, predict)
    return [replace(result, edits=edits.get(result.budget, ())) for result in results]


def _run_with_budgets(
    entry: Entry, context: RunContext, budgets: Sequence[float | None], predict: Callable[[Split], Predictions]
) -> list[EntryResult]:
    """Run an entry on every split, at every budget."""
    count = len(context.splits)
    predicted = {budget: torch.full((count, len(context.base.labels)), -1) for budget in budgets}
    reasons: dict[float | None, dict[int, str]] = {budget: {} for budget in budgets}
    started = time.perf_counter()
    context.observer.stage(entry.name, 0, count)
    for i, split in enumerate(context.splits):
        for budget, found in predict(split).items():
            if isinstance(found, str):
                reasons[budget][i] = found
            else:
                predicted[budget][i] = found.cpu()
        context.observer.stage(entry.name, i + 1, count)
    seconds = context.seconds_before + (time.perf_counter() - started) / count
    return [EntryResult(entry.name, budget, predicted[budget], reasons[budget], seconds) for budget in budgets]


def fit_chain(
    entry: Entry, context: RunContext, split: Split, budgets: tuple[float, ...]
) -> dict[float, ChainState | str]:
    """Fit a chain's post-hoc methods one after the other, at each budget.

    Each method's candidate is chosen on the calibration images: the best for the goal, within its
    limits, with accuracy at or above a floor: the original model's accuracy there minus the budget.
    A chain that starts below that, after a training, counts from its own start. Budgets that share
    a state also share the next fit.

    Returns:
        The final state at each budget, or why there is none.
    """
    outputs = context.outputs
    try:
        goal = context.goal(split)
    except InputError as reason:
        return dict.fromkeys(budgets, str(reason))
    states: dict[float, ChainState | str] = dict.fromkeys(budgets, ChainState.initial(outputs.logits))
    for name in entry.methods:
        fitted: dict[ChainState, Offer] = {}
        reached: dict[tuple[ChainState, bytes], ChainState] = {}
        for budget, state in states.items():
            if isinstance(state, str):
                continue
            try:
                if state not in fitted:
                    fitted[state] = posthoc_method(name)(outputs, state, split.calibration, goal)
                edit = fitted[state](goal.floor - budget).edit
                # Often several budgets choose one step, and each new one takes a forward pass.
                same = (state, edit.coefficients.tobytes() if isinstance(edit, WeightStep) else str(budget).encode())
                if same not in reached:
                    reached[same] = state.after(edit, outputs)
                states[budget] = reached[same]
            except InputError as reason:
                states[budget] = str(reason)
    return states


def _run_whole(entry: Entry, context: RunContext, model: ComparedModel) -> list[EntryResult]:
    """Run a whole operation on each split's calibration images."""
    (name,) = entry.methods
    if name in OPERATIONS:
        return _run_operation(entry, context, model)
    config = as_loop(model.config)

    def predict(split: Split) -> Tensor:
        labelled = model.images.subset(split.calibration)
        problem, _ = prepare(model.classifier, model.training_data, labelled, config, model.passes)
        with problem.space.keeping_weights():
            run(algorithm_of(config), problem, _Iterations(context, entry.name, split, config.total_iterations))
            return _predict(model)

    return [_run_without_budget(entry, context, predict)]


class _Iterations(Observer):
    """Tells of the iterations of an operation on one split, as parts of an entry's work."""

    def __init__(self, context: RunContext, name: str, split: Split, iterations: int) -> None:
        self._context = context
        self._name = name
        self._before = next(i for i, other in enumerate(context.splits) if other is split)
        self._iterations = iterations

    def iteration(self, record: IterationRecord) -> None:
        """Pass it on."""
        done = self._before + record.iteration / (self._iterations + 1)
        self._context.observer.stage(self._name, done, len(self._context.splits))


def _run_operation(entry: Entry, context: RunContext, model: ComparedModel) -> list[EntryResult]:
    """Run the default operation on each split, at every budget that is not negative.

    Directions and fits do not depend on the budget, so all budgets share them.
    """
    (name,) = entry.methods
    budgets = [budget for budget in context.protocol.budgets if budget >= 0]
    config = replace(context.terms, directions=OPERATIONS[name])
    if not budgets:
        size = (len(context.splits), len(context.base.labels))
        return [failed_result(entry, *size, "an operation needs a budget of 0 or more")]

    def predict(split: Split) -> Predictions:
        labelled = model.images.subset(split.calibration)
        try:
            problem, _ = prepare(model.classifier, model.training_data, labelled, config, model.passes)
            goal = operation_goal(problem)
            require_images(labelled.labels, labelled.classes, "calibration data", at_least=2)
            found = survey(problem, 1, goal, {}, Observer())
            predicted: Predictions = {}
            known: list[tuple[Tensor, Tensor]] = []
            for budget in budgets:
                limited = replace(goal, floor=goal.floor + config.budget - budget)
                tried = try_proposal(problem, limited, found, decide(found, limited, config.seed))
                if tried and tried.kept:
                    predicted[budget] = _predict_after(tried.step, problem, model, known)
                else:
                    predicted[budget] = context.outputs.logits.argmax(dim=1)
            return predicted
        except InputError as reason:
            return dict.fromkeys(budgets, str(reason))

    return _run_with_budgets(entry, context, budgets, predict)


def _predict_after(
    step: Tensor, problem: Problem[Any], model: ComparedModel, known: list[tuple[Tensor, Tensor]]
) -> Tensor:
    """Predict after a step (p,); `known` are steps that were taken before, with the predictions."""
    for other, predicted in known:
        if torch.equal(step, other):
            return predicted
    with problem.space.keeping_weights():
        problem.space.perturb(step)
        known.append((step, _predict(model)))
    return known[-1][1]


def _run_trained(entry: Entry, context: RunContext, model: ComparedModel, folder: Path | None) -> list[EntryResult]:
    """Run a chain that ends in a training, on the first split only.

    The training sees no labelled image of the comparison, but the weights that it starts from were
    fitted to the calibration images.
    """
    budget = context.protocol.headline

    def predict(split: Split) -> Tensor:
        edited = copy_model(model)
        end = fit_chain(entry, context, split, (budget,))[budget]
        if not isinstance(end, ChainState):
            raise InputError(end)
        apply_edits(edited.classifier.module, context.outputs.head, end.edits)
        train(edited, entry.last, entry.name, context.protocol, folder, context.observer)
        return _predict(edited)

    result = _run_without_budget(entry, replace(context, splits=context.splits[:1]), predict)
    others = torch.full((len(context.splits) - 1, len(context.base.labels)), -1)
    return [replace(result, predicted=torch.cat([result.predicted, others]))]


def copy_model(model: ComparedModel) -> ComparedModel:
    """Copy the module; the images are shared."""
    module = copy.deepcopy(model.classifier.module)
    return replace(model, classifier=replace(model.classifier, module=module))


def train(
    model: ComparedModel, name: str, chain: str, protocol: Protocol, folder: Path | None, observer: Observer
) -> None:
    """Fine-tune a compared model in place; `folder` keeps its state, under the chain's name."""
    observer.stage(chain, 0, 1)
    config = FINETUNES[name]
    head_epochs = round(protocol.epochs / config.epochs * config.head_epochs)
    config = replace(config, epochs=protocol.epochs, head_epochs=head_epochs, seed=protocol.seed)
    finetune(
        model.classifier,
        model.training_data,
        config,
        folder=folder / f"training-{chain}" if folder else None,
        progress=lambda done, total: observer.stage(chain, done, total),
    )


def failed_result(entry: Entry, splits: int, images: int, reason: str) -> EntryResult:
    """Make the result of an entry that failed on every split."""
    return EntryResult(entry.name, None, torch.full((splits, images), -1), dict.fromkeys(range(splits), reason), 0.0)


def _predict(model: ComparedModel) -> Tensor:
    return compute_logits(model.classifier, model.images, model.passes.batch_size).argmax(dim=1)


def _run_without_budget(entry: Entry, context: RunContext, predict: Callable[[Split], Tensor]) -> EntryResult:
    """Run an entry that has a single point."""

    def predict_point(split: Split) -> Predictions:
        try:
            return {None: predict(split)}
        except InputError as reason:
            return {None: str(reason)}

    (result,) = _run_with_budgets(entry, context, (None,), predict_point)
    return result
