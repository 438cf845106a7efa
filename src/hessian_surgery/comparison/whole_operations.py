"""Whole operations in a comparison: the default operation, and the paper's loop."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hessian_surgery.comparison.compared_model import ComparedModel, predict_images
from hessian_surgery.comparison.entries import OPERATIONS, Entry
from hessian_surgery.comparison.kept_splits import Predictions
from hessian_surgery.comparison.over_splits import failed_result, run_with_budgets, run_without_budget
from hessian_surgery.comparison.protocol import Split
from hessian_surgery.comparison.run_context import EntryResult, RunContext
from hessian_surgery.data.checks import require_images
from hessian_surgery.directions.logit_changes import logits_after
from hessian_surgery.errors import FileError, InputError
from hessian_surgery.operation.algorithms import algorithm_of
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.operation.driver import run
from hessian_surgery.operation.iteration import try_proposal
from hessian_surgery.operation.iteration_record import IterationRecord
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.problem import Problem, prepare
from hessian_surgery.operation.proposal import decide, operation_goal, survey
from hessian_surgery.operation.step import TriedStep
from hessian_surgery.paper.config import as_loop

# The class of an image that is not predicted yet.
UNKNOWN = -1
NO_BUDGET = "an operation needs a budget of 0 or more"


def run_whole(entry: Entry, context: RunContext, model: ComparedModel) -> list[EntryResult]:
    """Run a whole operation on each split's calibration images."""
    if entry.whole in OPERATIONS:
        return _run_operation(entry, context, model)
    places = {id(split): i for i, split in enumerate(context.left(entry.name))}

    def predict(split: Split) -> Tensor:
        def report(share: float) -> None:
            context.observer.stage(entry.name, places[id(split)] + share, len(places))

        problem = _loop_problem(model, split)
        with problem.space.keeping_weights():
            run(algorithm_of(problem.config), problem, _Iterations(report, problem.config.total_iterations))
            return predict_images(model)

    return [run_without_budget(entry, context, predict)]


def operate_in_place(
    name: str, context: RunContext, model: ComparedModel, split: Split, report: Callable[[float], None]
) -> None:
    """Leave the model at the end of a whole operation on a split, at the budget of the headline.

    Args:
        name: of the operation.
        context: what the entry is run on.
        model: changed in place.
        split: whose calibration images decide.
        report: told the share that is done.
    """
    if name not in OPERATIONS:
        problem = _loop_problem(model, split)
        run(algorithm_of(problem.config), problem, _Iterations(report, problem.config.total_iterations))
        return
    budget = context.protocol.headline
    if budget < 0:
        raise InputError(NO_BUDGET)
    problem, steps = _find_steps(model, replace(context.terms, directions=OPERATIONS[name]), split, (budget,))
    tried = steps[budget]
    if tried is not None:
        problem.space.perturb(tried.step)


def _loop_problem(model: ComparedModel, split: Split) -> Problem[Any]:
    labelled = model.images.subset(split.calibration)
    return prepare(model.classifier, model.training_data, labelled, as_loop(model.config), model.passes)[0]


class _Iterations(Observer):
    """Tells of an operation's iterations as shares of its work."""

    def __init__(self, report: Callable[[float], None], iterations: int) -> None:
        self._report = report
        self._iterations = iterations

    def iteration(self, record: IterationRecord) -> None:
        """Pass it on."""
        self._report(record.iteration / (self._iterations + 1))


def _run_operation(entry: Entry, context: RunContext, model: ComparedModel) -> list[EntryResult]:
    """Run the default operation on each split, at every budget that is not negative."""
    budgets = context.protocol.operation_budgets
    config = replace(context.terms, directions=OPERATIONS[entry.whole])
    if not budgets:
        size = (len(context.splits), len(context.base.labels))
        return [failed_result(entry, *size, NO_BUDGET)]

    def predict(split: Split) -> Predictions:
        try:
            problem, steps = _find_steps(model, config, split, budgets, context.outputs.logits)
        except FileError:
            raise
        except InputError as reason:
            return dict.fromkeys(budgets, str(reason))
        known: list[tuple[Tensor, Tensor]] = []
        unchanged = context.outputs.logits.argmax(dim=1)
        return {
            budget: unchanged if tried is None else _predict_after(tried, problem, model, split, known)
            for budget, tried in steps.items()
        }

    return run_with_budgets(entry, context, budgets, predict)


def _find_steps(
    model: ComparedModel, config: SurgeryConfig, split: Split, budgets: Sequence[float], logits: Tensor | None = None
) -> tuple[Problem[SurgeryConfig], dict[float, TriedStep | None]]:
    """The step that the default operation takes at each budget; None if it takes none.

    Directions and fits do not depend on the budget, so all budgets share them. If the logits of all
    images (N, C) are known, the calibration images need no pass.
    """
    labelled = model.images.subset(split.calibration)
    known = None if logits is None else logits[split.calibration.to(logits.device)]
    problem, _ = prepare(model.classifier, model.training_data, labelled, config, model.passes, known)
    goal = operation_goal(problem)
    require_images(labelled.labels, labelled.classes, "calibration data", at_least=2)
    found = survey(problem, 1, goal, {}, Observer())
    steps: dict[float, TriedStep | None] = {}
    for budget in budgets:
        limited = replace(goal, floor=goal.floor + config.budget - budget)
        tried = try_proposal(problem, limited, found, decide(found, limited, config.seed))
        steps[budget] = tried if tried and tried.kept else None
    return problem, steps


def _predict_after(
    tried: TriedStep, problem: Problem[Any], model: ComparedModel, split: Split, known: list[tuple[Tensor, Tensor]]
) -> Tensor:
    """Predict after a step that was measured on the calibration images: the others are left.

    `known` are steps that were taken before, with the predictions.
    """
    for other, predicted in known:
        if torch.equal(tried.step, other):
            return predicted
    predicted = torch.full((len(model.images),), UNKNOWN)
    predicted[split.calibration] = tried.answers.cpu()
    rest = (predicted == UNKNOWN).nonzero().squeeze(1)
    images = model.images.subset(rest)
    after = logits_after(model.classifier, problem.space, tried.step, images, model.passes.batch_size)
    predicted[rest] = after.argmax(dim=1).cpu()
    known.append((tried.step, predicted))
    return predicted
