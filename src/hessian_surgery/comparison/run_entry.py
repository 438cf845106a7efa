"""Run one entry of a comparison on every split."""

import copy
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from hessian_surgery.baselines.finetune import choose_finetune, finetune
from hessian_surgery.baselines.model_edits import ChainState, Edit, WeightStep, apply_edits
from hessian_surgery.baselines.posthoc import Offer
from hessian_surgery.comparison.compared_model import ComparedModel, predict_images
from hessian_surgery.comparison.entries import Entry, posthoc_method
from hessian_surgery.comparison.kept_splits import Predictions
from hessian_surgery.comparison.over_splits import run_with_budgets, run_without_budget
from hessian_surgery.comparison.protocol import Protocol, Split
from hessian_surgery.comparison.run_context import EntryResult, RunContext
from hessian_surgery.comparison.whole_operations import operate_in_place, run_whole
from hessian_surgery.errors import FileError, InputError
from hessian_surgery.types import Progress


def run_entry(entry: Entry, context: RunContext, model: ComparedModel, folder: Path | None) -> list[EntryResult]:
    """Run one entry on every split; `folder` keeps the state of its training, if it has one."""
    if entry.last:
        return _run_trained(entry, context, model, folder)
    if entry.whole:
        return run_whole(entry, context, model)
    return run_from_outputs(entry, context)


def run_from_outputs(entry: Entry, context: RunContext) -> list[EntryResult]:
    """Run an entry that needs only the model's outputs: post-hoc methods, or nothing."""
    if entry.methods:
        return _run_posthoc(entry, context)
    predicted = context.outputs.logits.argmax(dim=1).cpu()
    return [run_without_budget(entry, context, lambda _: predicted)]


def _run_posthoc(entry: Entry, context: RunContext) -> list[EntryResult]:
    """Fit a chain of post-hoc methods to each split's calibration images, at each budget."""
    budgets = context.protocol.budgets
    edits: dict[float | None, tuple[Edit, ...]] = {}

    def predict(split: Split) -> Predictions:
        ends = fit_chain(entry, context, split, budgets)
        if split is context.splits[0] and not entry.trunk:
            edits.update({budget: end.edits for budget, end in ends.items() if isinstance(end, ChainState)})
        return {budget: end if isinstance(end, str) else end.logits.argmax(dim=1) for budget, end in ends.items()}

    results = run_with_budgets(entry, context, budgets, predict)
    return [replace(result, edits=edits.get(result.budget, ())) for result in results]


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
            except FileError:
                raise
            except InputError as reason:
                states[budget] = str(reason)
    return states


def _run_trained(entry: Entry, context: RunContext, model: ComparedModel, folder: Path | None) -> list[EntryResult]:
    """Run a chain that ends in a training, on the first split only.

    The training sees no labelled image of the comparison, but the weights that it starts from were
    fitted to the calibration images.
    """
    budget = context.protocol.headline
    # The share of the work that is shown as done when the training begins.
    before = 0.5 if entry.whole else 0.0

    def told(done: float, total: int) -> None:
        context.observer.stage(entry.name, before * total + (1 - before) * done, total)

    def predict(split: Split) -> Tensor:
        edited = copy_model(model)
        if entry.whole:
            operate_in_place(
                entry.whole,
                context,
                edited,
                split,
                lambda share: context.observer.stage(entry.name, before * share, 1),
            )
        else:
            end = fit_chain(entry, context, split, (budget,))[budget]
            if not isinstance(end, ChainState):
                raise InputError(end)
            apply_edits(edited.classifier.module, context.outputs.head, end.edits)
        train(edited, entry.last, entry.name, context.protocol, folder, told)
        return predict_images(edited)

    result = run_without_budget(entry, replace(context, splits=context.splits[:1]), predict)
    others = torch.full((len(context.splits) - 1, len(context.base.labels)), -1)
    return [replace(result, predicted=torch.cat([result.predicted, others]))]


def copy_model(model: ComparedModel) -> ComparedModel:
    """Copy the module; the images are shared."""
    module = copy.deepcopy(model.classifier.module)
    return replace(model, classifier=replace(model.classifier, module=module))


def train(
    model: ComparedModel, name: str, chain: str, protocol: Protocol, folder: Path | None, progress: Progress
) -> None:
    """Fine-tune a compared model in place; `folder` keeps its state, under the chain's name."""
    progress(0, 1)
    config = choose_finetune(name, model.training_data, model.config.search.spikes)
    head_epochs = round(protocol.epochs / config.epochs * config.head_epochs)
    config = replace(config, epochs=protocol.epochs, head_epochs=head_epochs, seed=protocol.seed)
    finetune(
        model.classifier,
        model.training_data,
        config,
        folder=folder / f"training-{chain}" if folder else None,
        progress=progress,
    )
