"""`hessian-surgery train`: make the checkpoint that others operate on."""

import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hessian_surgery.baselines.train import TrainConfig
from hessian_surgery.baselines.train import train as train_model
from hessian_surgery.baselines.training_state import forget_state
from hessian_surgery.cli.choices import LOSSES
from hessian_surgery.cli.inputs import OpenedModel, open_model, opened_parts
from hessian_surgery.cli.output import notes, print_json, print_notes, results
from hessian_surgery.cli.train_options import SHORT_LOSS, TrainOptions
from hessian_surgery.data.checks import require_images
from hessian_surgery.data.images import Preprocessing, channel_statistics
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.readers.hugging_face import Encoding
from hessian_surgery.data.sources import IMAGE_KINDS
from hessian_surgery.errors import InputError, require
from hessian_surgery.evidence.metrics import Metrics, compute_metrics
from hessian_surgery.model.evaluation import check_classifier, finite_logits
from hessian_surgery.operation.environment import environment
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.progress import ShownProgress
from hessian_surgery.operation.schedule import Expected
from hessian_surgery.types import Progress
from hessian_surgery.weights.tensorfile import file_sha256, save_tensors

# Images are shifted by up to this share of their side.
SHIFT = 1 / 8
# Of the next command, where one set must both decide and judge.
FOLDS = 5


def train(options: TrainOptions) -> None:
    """Train a classifier, and write its weights."""
    _check_out(options.out)
    config = _choose(options)
    options, opened, test = _open(options)
    if _from_files(options):
        config = _augmented(config, options, opened.parts.training)
    folder = options.out.with_suffix(".training")
    start = time.perf_counter()
    size = f"training on {len(opened.parts.training):,} {test.noun}, measuring on {len(test):,}"
    try:
        with ShownProgress(notes(), (*opened.remarks, size)) as observer:
            report = _told_to(observer, config.epochs)
            train_model(opened.model, opened.parts.training, config, folder=folder, progress=report)
            observer.stage("measuring", 0, 1)
            logits = finite_logits(opened.classifier, test)
            found = compute_metrics(logits.argmax(dim=1), test.labels, len(test.classes))
    except KeyboardInterrupt as stop:
        stop.args = ("interrupted; give the same command again to continue after the last whole epoch",)
        raise
    metadata = _metadata(options, config, opened)
    save_tensors(options.out, opened.model.state_dict(), metadata)
    forget_state(folder)
    _show(options, opened, found, metadata, time.perf_counter() - start)


def _check_out(path: Path) -> None:
    if path.suffix != ".safetensors":
        raise InputError(f"out: got {str(path)!r}; give a file whose name ends in .safetensors")
    if path.exists():
        raise InputError(f"out: {path} exists; give another file, or move that one away")


def _open(options: TrainOptions) -> tuple[TrainOptions, OpenedModel, LabelledSet]:
    """Open model and data; the options then say how images are normalised."""
    if options.calibration_data is not None:
        raise InputError("calibration_data: train has no use for it; leave out --calibration-data")
    needs = ("training", "calibration" if options.heldout_data is None else "heldout")
    if options.checkpoint is None and options.mean is None and options.std is None and _from_files(options):
        unscaled = opened_parts(options, Encoding(Preprocessing(size=options.image_size)), needs, halve=False)
        mean, std = (",".join(map(str, values)) for values in channel_statistics(unscaled.training, options.seed))
        options = replace(options, mean=mean, std=std)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        opened = open_model(options, needs, halve=False, fresh=True)
    test = opened.parts.calibration if options.heldout_data is None else opened.parts.heldout
    require_images(test.labels, test.classes, "data" if options.heldout_data is None else "heldout_data")
    check_classifier(opened.classifier, test)
    return options, opened, test


def _from_files(options: TrainOptions) -> bool:
    """Whether the training images come from files, rather than from digits or a function."""
    return str(options.training_data or options.data).partition(":")[0] in IMAGE_KINDS


def _choose(options: TrainOptions) -> TrainConfig:
    known = (SHORT_LOSS, *LOSSES)
    require(options.loss.partition(":")[0] in known, "loss", options.loss, f"one of {', '.join(known)}")
    return TrainConfig(
        loss="cross-entropy" if options.loss == SHORT_LOSS else options.loss,
        epochs=options.epochs,
        learning_rate=options.learning_rate,
        batch_size=options.batch_size,
        seed=options.seed,
        shift=options.shift or 0,
        flip=bool(options.flip),
    )


def _augmented(config: TrainConfig, options: TrainOptions, training: LabelledSet) -> TrainConfig:
    """The same choices; images are shifted and mirrored, unless the options say otherwise."""
    image = training.fetch(torch.zeros(1, dtype=torch.int64))
    assert isinstance(image, torch.Tensor)
    shift = round(SHIFT * image.shape[-1]) if options.shift is None else options.shift
    return replace(config, shift=shift, flip=options.flip is not False)


def _told_to(observer: Observer, epochs: int) -> Progress:
    """Progress of a training as stages, one for each epoch that is left."""
    begun = False

    def name(epoch: int) -> str:
        return f"epoch {epoch + 1} of {epochs}"

    def report(done: int, total: int) -> None:
        nonlocal begun
        epoch, step = divmod(done, total // epochs)
        if not begun:
            begun = True
            observer.expect(lambda: [Expected(name(i), 1.0) for i in range(epoch, epochs)], in_seconds=False)
            observer.stage("reading the training set", 0, 1)
        elif done < total:
            observer.stage(name(epoch), step * epochs / total, 1)

    return report


def _metadata(options: TrainOptions, config: TrainConfig, opened: OpenedModel) -> dict[str, str]:
    """What the file says of itself; other commands read how images are normalised."""
    start = opened.checkpoint.metadata if opened.checkpoint else {}
    known = {
        "model": options.model,
        "data": options.training_data or options.data,
        "checkpoint": options.checkpoint,
        "image_size": options.image_size,
        "normalize_mean": options.mean or start.get("normalize_mean"),
        "normalize_std": options.std or start.get("normalize_std"),
        "loss": config.loss,
        "epochs": config.epochs,
        "seed": config.seed,
    }
    return {key: str(value) for key, value in known.items() if value is not None}


def _show(
    options: TrainOptions, opened: OpenedModel, found: Metrics, metadata: Mapping[str, str], seconds: float
) -> None:
    """Show what the model can do, where it is, and what to do next."""
    classes = opened.parts.training.classes
    weakest = classes[found.per_class.index(found.worst)]
    if options.as_json:
        content: dict[str, Any] = {
            "checkpoint": str(options.out),
            "sha256": file_sha256(options.out),
            "metadata": dict(metadata),
            "training": len(opened.parts.training),
            "test": found.as_dict() | {"classes": list(classes), "weakest": weakest},
            "seconds": seconds,
            "environment": environment(opened.classifier.device),
        }
        print_json(content)
    else:
        results().print(
            f"test accuracy {100 * found.accuracy:.2f} %, σ {100 * found.sigma:.2f} pp, worst class {weakest} "
            f"{100 * found.worst:.1f} %",
            highlight=False,
            markup=False,
        )
    print_notes([f"checkpoint: {options.out}", f"next: {_next(options)}"])


def _next(options: TrainOptions) -> str:
    """The command that operates on what was trained."""
    given = {
        "--model": options.model,
        "--checkpoint": options.out,
        "--data": options.data,
        "--training-data": options.training_data,
        "--calibration-data": options.heldout_data,
        "--folds": FOLDS if options.heldout_data else None,
        "--image-size": options.image_size,
        "--seed": options.seed or None,
    }
    words = [word for key, value in given.items() if value is not None for word in (key, str(value))]
    return shlex.join(["hessian-surgery", "operate", *words])
