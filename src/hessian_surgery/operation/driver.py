"""The driver: what an algorithm is, and how one is run, kept in a folder and resumed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from hessian_surgery.curvature.search import NoSpikes
from hessian_surgery.distributed import require_same
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.asked import Asked
from hessian_surgery.operation.history import HistoryWriter, history_hash, load_history
from hessian_surgery.operation.iteration_record import IterationRecord
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.problem import Problem
from hessian_surgery.operation.state_file import Packed, Unpack, fingerprint, kept_history, load_state, save_state
from hessian_surgery.types import Array

# What ranks must not do, and why they might.
SAME_KIND = "has decided differently than rank 0; run all ranks on machines of the same kind"


class State(Protocol):
    """Where an algorithm stands between two iterations; the present weights are in the module."""

    @property
    def iteration(self) -> int:
        """Iterations finished."""


S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class Ending:
    """What an algorithm leaves behind, beside the weights in the module.

    Attributes:
        accuracy: class accuracies (C,) of these weights on the calibration data.
        front: predictions for other objectives and budgets, if the algorithm makes any.
        spent: why no more spikes could be found, if that ended the run.
        biases: what a class bias for the same goal adds to each logit (C), if one was fitted.
        overconfidence: what a temperature that fits the calibration images is multiplied by, as
            steps were fitted to these images too.
    """

    accuracy: Array
    front: dict[str, Any] | None = None
    spent: str | None = None
    biases: list[float] | None = None
    overconfidence: float = 1.0


@dataclass(frozen=True)
class Work:
    """What an operation has to do, for an estimate of its cost.

    Attributes:
        passes: forward passes over the calibration images.
        backward: how many of them go back as well.
        extra_images: images that go forward besides.
    """

    passes: int
    backward: int = 0
    extra_images: int = 0


@dataclass(frozen=True)
class Algorithm(Generic[S]):
    """An algorithm as functions of the problem and its state.

    Attributes:
        record: what it records of an iteration.
        start: the state before the first iteration.
        iterate: one iteration: the next state, and what to record.
        finished: whether no iteration is left to do.
        may_end: whether running out of spikes ends the run, instead of being an error.
        finish: leave the result's weights in the module.
        choices: what the config left open, as it was settled, for `result.json`.
        asked: what the operation was asked for, which the verdict is about.
        warnings: what should be said about a finished run, from its records and the class
            accuracies (C,) that it reached.
        ended: why no iteration was left to do, in one sentence, from the records.
        pack: a state as tensors and plain values for a file; the present weights are kept anyway.
            It gets the folder, for what is kept in files of its own, and the run's identity.
        unpack: the inverse.
        work: what it would have to do, from config, calibration images of each class (C,), device.
    """

    record: type[IterationRecord]
    start: Callable[[Problem[Any]], S]
    iterate: Callable[[Problem[Any], S, Observer], tuple[S, IterationRecord]]
    finished: Callable[[Problem[Any], S], bool]
    may_end: Callable[[S], bool]
    finish: Callable[[Problem[Any], S], Ending]
    choices: Callable[[Problem[Any]], dict[str, Any]]
    asked: Callable[[Problem[Any]], Asked]
    warnings: Callable[[Problem[Any], Sequence[Any], Array], tuple[str | None, ...]]
    ended: Callable[[Problem[Any], Sequence[Any]], str]
    pack: Callable[[Path, Problem[Any], S, str], Packed]
    unpack: Unpack[S]
    work: Callable[[Any, Tensor, torch.device], Work]


def run(
    algorithm: Algorithm[S],
    problem: Problem[Any],
    observer: Observer,
    state: S | None = None,
    keep: Callable[[S], None] | None = None,
) -> Ending:
    """Iterate until the algorithm is finished; leave the result's weights in the module.

    Args:
        algorithm: what to run.
        problem: what is operated on.
        observer: told about each iteration.
        state: where to go on from; by default the start.
        keep: called with the state after each iteration, after the observer.
    """
    state = algorithm.start(problem) if state is None else state
    spent = None
    while not algorithm.finished(problem, state):
        try:
            state, record = algorithm.iterate(problem, state, observer)
        except NoSpikes as reason:
            if not algorithm.may_end(state):
                raise
            spent = str(reason)
            break
        require_same(repr((record.accepted, record.coefficients)), SAME_KIND)
        observer.iteration(record)
        if keep is not None:
            keep(state)
    return replace(algorithm.finish(problem, state), spent=spent)


def why_ended(algorithm: Algorithm[Any], problem: Problem[Any], records: Sequence[Any], ending: Ending) -> str:
    """Why a run ended, in one sentence."""
    if ending.spent is None:
        return algorithm.ended(problem, records)
    why = ending.spent.partition(": ")[2]
    return f"Ended after {iterations_of(len(records))}, as no spikes were left: {why}."


def iterations_of(count: int) -> str:
    """So many iterations, in words."""
    return f"{count} iteration{'' if count == 1 else 's'}"


def run_in_folder(
    algorithm: Algorithm[Any], problem: Problem[Any], folder: Path | None, resume: bool, observer: Observer
) -> tuple[list[IterationRecord], Ending]:
    """Run an algorithm with its history and state kept in a folder, if there is one."""
    if problem.finder is not None:
        observer.remark(problem.finder.describe())
    if folder is None:
        history = HistoryWriter(None, [], observer)
        ending = run(algorithm, problem, history)
        return history.records, ending
    if not resume and (folder / "history.jsonl").exists():
        raise InputError(f"folder: {folder} holds another run; give another, or resume=True to go on with it")
    identity = fingerprint(problem)
    saved = load_state(folder, problem, identity, algorithm.unpack) if resume else None
    state = None
    earlier: list[IterationRecord] = []
    if saved is not None:
        problem, state = saved
        earlier = load_history(folder, state.iteration, algorithm.record, kept_history(folder))
    history = HistoryWriter(folder, earlier, observer)

    def keep(kept: Any) -> None:
        packed = algorithm.pack(folder, problem, kept, identity)
        save_state(folder, problem, packed, identity, history_hash(history.records))

    ending = run(algorithm, problem, history, state, keep)
    return history.records, ending
