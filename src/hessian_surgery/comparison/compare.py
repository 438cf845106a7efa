"""Compare methods on one front: repeated stratified splits, at several accuracy budgets."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from torch import nn

from hessian_surgery.baselines.outputs import ModelOutputs
from hessian_surgery.baselines.posthoc import FROM_LOGITS
from hessian_surgery.comparison.compared_model import OUTPUTS, ComparedModel, compute_outputs, matched_search
from hessian_surgery.comparison.entries import Entry, family_of, require_logits_only
from hessian_surgery.comparison.expected import EVIDENCE_STAGE, expected_comparison, expected_from_outputs
from hessian_surgery.comparison.fronts import Fronts, make_fronts
from hessian_surgery.comparison.kept_splits import KeptSplits, find_kept
from hessian_surgery.comparison.over_splits import failed_result
from hessian_surgery.comparison.protocol import Protocol, Split
from hessian_surgery.comparison.run_context import EntryResult, RunContext
from hessian_surgery.comparison.run_entry import copy_model, run_entry, run_from_outputs, train
from hessian_surgery.data.checks import require_images
from hessian_surgery.data.class_names import require_same_names
from hessian_surgery.data.data_hash import data_hash
from hessian_surgery.data.labelled import Data, LabelledSet, as_labelled, as_part
from hessian_surgery.data.leaks import HashedPart, find_copies, find_leaks, hash_part, hash_training
from hessian_surgery.directions.class_gradients import gradient_images
from hessian_surgery.errors import FileError, InputError
from hessian_surgery.evidence.noun import said_of
from hessian_surgery.model.classifier import Classifier, as_classifier
from hessian_surgery.model.evaluation import check_classifier
from hessian_surgery.model.freed_memory import kept_for_passes
from hessian_surgery.model.parameters import parameter_space, refuse_half_precision
from hessian_surgery.model.passes import Passes, choose_passes
from hessian_surgery.operation.config import OperationConfig, SurgeryConfig, as_surgery
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.progress import watched
from hessian_surgery.plain_modes import in_plain_modes


@in_plain_modes
def compare(
    model: nn.Module | Classifier,
    *,
    data: Data,
    training_data: Data,
    protocol: Protocol | None = None,
    config: OperationConfig | None = None,
    folder: str | Path | None = None,
    observer: Observer | None = None,
    progress: bool = False,
) -> Fronts:
    """Put methods on one front; the model itself does not change.

    Args:
        model: the trained classifier.
        data: labelled images that it was not trained on. Each split divides them into calibration
            images, which methods are fitted to, and held-out images, which they are judged on.
        training_data: the images for Hessian batches, class gradients and fine-tuning.
        protocol: what to compare and how; by default all post-hoc methods, the default operation
            and the loop, on five splits.
        config: the goal and limits that every method is held to, except its budget; how to find
            spikes, and how to run `loop`.
        folder: what a killed comparison goes on from: the state of trainings, and what whole
            operations predicted on the splits that are done.
        observer: told about progress.
        progress: show a bar on stderr, or a line now and then where that is no terminal.

    Example:
        >>> protocol = hs.Protocol(methods=("class-bias",), splits=2)
        >>> fronts = hs.compare(model, data=calibration, training_data=train, protocol=protocol)
        >>> fronts.images, fronts.splits
        (600, 2)
    """
    protocol = protocol or Protocol()
    config = config or SurgeryConfig()
    terms = as_surgery(config)
    with kept_for_passes(as_classifier(model).device), watched(observer, progress) as observer:
        original = open_compared(model, data, training_data, config)
        images = original.images
        hashed, training = hash_part(images, "data"), hash_drawn(original)
        warnings = original.notes + find_shared(training, hashed)
        splits = protocol.make_splits(images)
        place = Path(folder) if folder else None
        kept = find_kept(place, original, protocol, hashed.hashes, training.hashes)
        done = {name: len(one.done) for name, one in kept.items()}
        observer.expect(partial(expected_comparison, original, protocol, splits, terms, done=done))
        base, results = _run_all(original, protocol, splits, terms, place, kept, observer)
        observer.stage(EVIDENCE_STAGE, 0, 1)
        warnings = tuple(said_of(warning, images.noun, images.classes) for warning in warnings)
        fronts = replace(make_fronts(base, results, splits, protocol, terms), warnings=warnings, noun=images.noun)
    return _dated(fronts, type(original.classifier.module).__name__, images, hashed.hashes)


def _run_all(
    original: ComparedModel,
    protocol: Protocol,
    splits: list[Split],
    terms: SurgeryConfig,
    folder: Path | None,
    kept: Mapping[str, KeptSplits],
    observer: Observer,
) -> tuple[ModelOutputs, list[EntryResult]]:
    """The original model's outputs, and the results of all entries."""
    results: list[EntryResult] = []
    base: ModelOutputs | None = None
    observer.stage(OUTPUTS, 0, 1)
    # Other passes round differently: the splits that are left would not be as they would have been.
    original = _with_passes(original, next((one.passes for one in kept.values() if one.passes), None))
    kept = {name: replace(one, passes=original.passes) for name, one in kept.items()}
    for trunk in dict.fromkeys(entry.trunk for entry in protocol.entries):
        members = [entry for entry in protocol.entries if entry.trunk == trunk]
        started = time.perf_counter()
        try:
            present = _after_training(original, trunk, protocol, folder, observer)
            trained = time.perf_counter() - started
            observer.stage(OUTPUTS, 0, 1)
            outputs = compute_outputs(present, [name for entry in members for name in entry.methods], observer)
        except FileError:
            raise
        except InputError as reason:
            if base is None:
                raise
            size = (len(splits), len(original.images))
            results += [failed_result(entry, *size, str(reason)) for entry in members]
            continue
        base = base or outputs
        own = replace(terms, search=present.config.search)
        context = RunContext(outputs, base, splits, protocol, observer, trained, own, kept)
        results += _run_entries(members, context, present, folder)
    assert base is not None  # `nothing` comes first and has no trunk
    return base, results


def _dated(fronts: Fronts, model: str, images: LabelledSet, hashes: Sequence[bytes] | None = None) -> Fronts:
    """The comparison with the names of what was compared; `hashes` are those of all images."""
    whole = hashes is None or len(hashes) == len(images)
    data = {"images": len(images), "sha256": data_hash(images, hashes) if whole else None}
    return replace(fronts, date=datetime.now(UTC).isoformat(timespec="seconds"), model=model, data={"labelled": data})


def hash_drawn(model: ComparedModel) -> HashedPart:
    """Hash the training images, or if they are not in memory, those of the class gradients.

    All would be too many to read.
    """
    training = model.training_data
    drawn = [] if training.in_memory or len(training) == 0 else [gradient_images(training, model.config.seed)]
    return hash_training(training, drawn)


def find_shared(training: HashedPart, images: HashedPart) -> tuple[str, ...]:
    """Name the images that are in the training data too, or twice among the images.

    Args:
        training: the hashes of training images.
        images: those of the labelled images.

    Raises:
        InputError: too many images are in the training data.
    """
    leaks = find_leaks([training, images], images.total)
    _, copies = find_copies(images)
    across = (f"{copies.sentence}; such images may be on both sides of a split",) if copies else ()
    return (*(leak.sentence for leak in leaks), *across)


def open_compared(
    model: nn.Module | Classifier, data: Data, training_data: Data, config: OperationConfig
) -> ComparedModel:
    """The model with its images checked and placed; how passes are made is not chosen yet."""
    classifier = as_classifier(model)
    images = as_labelled(data)
    require_images(images.labels, images.classes, "data")
    images = images.resident(classifier.device)
    refuse_half_precision(parameter_space(classifier.module, config.parameters))
    note = check_classifier(classifier, images)
    as_surgery(config).check_classes(images.classes)
    training = as_part(training_data, "training_data")
    require_same_names(images.classes, training.classes, "training_data", "data")
    return ComparedModel(classifier, images, training, config, notes=(note,) if note else ())


def _with_passes(model: ComparedModel, known: Passes | None = None) -> ComparedModel:
    """The model with a known way to make passes, or with the fastest."""
    passes = known or choose_passes(model.classifier, model.images, model.config.batch_size)
    return replace(model, classifier=passes.through(model.classifier), passes=passes)


@in_plain_modes
def compare_logits(
    outputs: ModelOutputs,
    protocol: Protocol | None = None,
    observer: Observer | None = None,
    config: SurgeryConfig | None = None,
) -> Fronts:
    """Put the methods that need only logits on one front.

    Args:
        outputs: cached logits and labels, as `load_logits` reads them.
        protocol: what to compare and how; by default all methods that need only logits.
        observer: told about progress.
        config: the goal and limits that every method is held to, except its budget.

    Raises:
        InputError: a method needs the model.

    Example:
        >>> protocol = hs.Protocol(methods=("class-bias",), splits=2)
        >>> hs.compare_logits(fronts.outputs, protocol).splits
        2
    """
    protocol = protocol or Protocol(methods=FROM_LOGITS)
    require_logits_only(protocol.entries)
    require_images(outputs.labels, outputs.classes, "logits")
    terms = config or SurgeryConfig()
    terms.check_classes(outputs.classes)
    images = as_labelled((outputs.logits, outputs.labels), outputs.classes)
    splits = protocol.make_splits(images)
    observer = observer or Observer()
    observer.expect(partial(expected_from_outputs, protocol), in_seconds=False)
    context = RunContext(outputs, outputs, splits, protocol, observer, terms=terms)
    results = [result for entry in protocol.entries for result in run_from_outputs(entry, context)]
    observer.stage(EVIDENCE_STAGE, 0, 1)
    return _dated(make_fronts(outputs, results, splits, protocol, terms), "stored logits", images)


def _run_entries(
    entries: list[Entry], context: RunContext, model: ComparedModel, folder: Path | None
) -> list[EntryResult]:
    """Run the entries that share a trunk."""
    results: list[EntryResult] = []
    for entry in entries:
        seconds = context.seconds_before + _family_seconds(entry, context.outputs)
        results += run_entry(entry, replace(context, seconds_before=seconds), model, folder)
    return results


def _family_seconds(entry: Entry, outputs: ModelOutputs) -> float:
    """Return the seconds that the families of directions took which an entry uses."""
    families = {family_of(name) for name in entry.methods}
    return sum(seconds for name, seconds in outputs.family_seconds.items() if name in families)


def _after_training(
    model: ComparedModel, trunk: str, protocol: Protocol, folder: Path | None, observer: Observer
) -> ComparedModel:
    """Return the model, or a trained copy of it, with its own Hessian, if there is a trunk."""
    if not trunk:
        return model
    trained = copy_model(model)
    train(trained, trunk, trunk, protocol, folder, partial(observer.stage, trunk))
    search = matched_search(model.config.search, trunk)
    return replace(trained, config=replace(model.config, search=search))
