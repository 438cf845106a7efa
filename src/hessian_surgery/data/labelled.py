"""LabelledSet: samples with labels, from tensors, datasets or loaders; read on demand."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, default_collate

from hessian_surgery.data import batches
from hessian_surgery.data.batches import Inputs
from hessian_surgery.data.class_names import numbered_names
from hessian_surgery.data.collating import Collate, stack
from hessian_surgery.data.ragged import Ragged
from hessian_surgery.data.sampling import sampled_dataset
from hessian_surgery.data.texts import CutOff, cut_off
from hessian_surgery.distributed import in_turns
from hessian_surgery.errors import FileError, InputError
from hessian_surgery.plain_text import reason
from hessian_surgery.ranks import Ranks
from hessian_surgery.types import Progress

Noun: TypeAlias = Literal["images", "texts", "samples"]

LABEL_KEYS = ("label", "labels")
# What a model of texts takes, in the words of Hugging Face.
TOKENS = "input_ids"
CHUNK = 512


@dataclass(frozen=True)
class LabelledSet:
    """N labelled samples.

    Attributes:
        fetch: function from positions (n,) int64 in 0..N-1 to the inputs of those samples, stacked.
        labels: true classes (N,) int64, each in 0..C-1.
        classes: the C class names.
        index: position (N,) int64 of each sample in the source that it was drawn from.
        in_memory: whether the inputs are held in memory, so that all can be read at little cost.
        ragged: the samples one by one, if they may differ in length; a batch is then padded to its
            longest sample.
        cut: the texts that were cut off; None if none was, or before all have been read.

    Example:
        >>> heldout, heldout.classes
        (LabelledSet(600 samples of 3 classes), ('ant', 'bee', 'cat'))
        >>> heldout.subset(torch.tensor([0, 200])).labels
        tensor([0, 1])
    """

    fetch: Callable[[Tensor], Inputs]
    labels: Tensor
    classes: tuple[str, ...]
    index: Tensor
    in_memory: bool = False
    ragged: Ragged | None = None
    cut: CutOff | None = None

    def __post_init__(self) -> None:
        wrong = (self.labels < 0) | (self.labels >= len(self.classes))
        if wrong.any():
            at = int(wrong.nonzero()[0])
            raise InputError(
                f"data: sample {int(self.index[at])} has label {int(self.labels[at])}, "
                f"outside the {len(self.classes)} classes 0..{len(self.classes) - 1}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"LabelledSet({len(self):,} samples of {len(self.classes):,} classes)"

    @property
    def noun(self) -> Noun:
        """What reports call samples: "images" have rows and columns, "texts" have tokens."""
        first = self.fetch(torch.zeros(1, dtype=torch.int64))
        if isinstance(first, Mapping) and TOKENS in first:
            return "texts"
        held = batches.tensors(first)
        return "images" if any(tensor.ndim == 4 for tensor in held) else "samples"

    @property
    def counts(self) -> Tensor:
        """Samples per class (C,) int64."""
        return torch.bincount(self.labels, minlength=len(self.classes))

    def subset(self, positions: Tensor) -> "LabelledSet":
        """The samples at `positions` (n,), in that order."""
        return replace(
            self,
            fetch=lambda chosen: self.fetch(positions[chosen]),
            labels=self.labels[positions],
            index=self.index[positions],
            ragged=None if self.ragged is None else self.ragged.subset(positions),
            cut=None,
        )

    def inputs(self) -> Inputs:
        """All inputs, stacked."""
        return self.fetch(torch.arange(len(self)))

    def resident(self, device: torch.device | str = "cpu", progress: Progress | None = None) -> "LabelledSet":
        """The same samples, read now and kept on `device`; `progress` is told of samples read.

        Samples that differ in length stay in host memory; each batch is padded and moved. Ranks
        take turns at reading: so all hold the same, even if a data set augments its images.
        """
        place = torch.device(device)
        if self.ragged is not None and len(self):
            samples = [self.ragged.read(i) for i in range(len(self))]
            held = self.ragged.resident(samples, place)
            known = replace(self, in_memory=True, cut=cut_off(samples))
            if isinstance(held, Ragged):
                return replace(known, fetch=held.fetch, ragged=held)
        else:
            held = self._stacked(place, progress)
            known = replace(self, in_memory=True)
        return replace(known, fetch=lambda chosen: batches.take(held, chosen), ragged=None)

    def _stacked(self, device: torch.device, progress: Progress | None) -> Inputs:
        def read(chunk: Tensor) -> Inputs:
            if progress is not None:
                progress(int(chunk[0]), len(self))
            return self.fetch(chunk)

        chunks = [chunk for chunk in self._chunks(CHUNK) if len(chunk)]
        found = map(read, chunks) if self.in_memory else in_turns(chunks, read)
        parts = [batches.move(part, device) for part in found]
        try:
            return batches.join(parts)
        except RuntimeError as error:
            raise InputError(
                "data: batches differ in shape; pad or resize all samples to one, as by padding='max_length'"
            ) from error

    def batches(self, size: int, device: torch.device, ranks: Ranks | None = None) -> Iterator[tuple[Inputs, Tensor]]:
        """Inputs and labels in order, at most `size` samples at a time, on `device`.

        With `ranks`, only the batches that are this rank's turn.
        """
        chunks = self._chunks(size)
        for chunk in chunks if ranks is None else chunks[ranks.rank :: ranks.size]:
            yield batches.move(self.fetch(chunk), device), batches.move_tensor(self.labels[chunk], device)

    def _chunks(self, size: int) -> Sequence[Tensor]:
        return torch.arange(len(self)).split(size)


Data: TypeAlias = LabelledSet | tuple[Inputs, Tensor] | Dataset[Any] | DataLoader[Any]


def as_labelled(data: Data, classes: Sequence[str] | None = None) -> LabelledSet:
    """Make a `LabelledSet` from a pair (inputs, labels), a `Dataset` or a `DataLoader`.

    Args:
        data: a pair of stacked inputs and labels (N,), a map-style dataset, or a loader of one. A
            sample is (input, label), (input, …, label) or a dict with `label` or `labels`. A loader
            gives the samples that it draws and its collate function; its order, batch size and
            drop_last do not count.
        classes: class names; by default the dataset's `classes`, or the names of its `ClassLabel`,
            or the labels as numbers.

    Example:
        >>> hs.as_labelled((torch.randn(6, 4), torch.arange(6) % 2), classes=("no", "yes"))
        LabelledSet(6 samples of 2 classes)
    """
    if isinstance(data, LabelledSet):
        return data
    if isinstance(data, DataLoader):
        return _from_dataset(sampled_dataset(data), data.collate_fn, classes)
    if isinstance(data, tuple) and len(data) == 2:
        inputs = _as_tensor(data[0], "inputs") if hasattr(data[0], "__array__") else data[0]
        return _from_tensors(inputs, _as_tensor(data[1], "labels"), classes)
    alone = isinstance(data, (str, bytes, Mapping)) or hasattr(data, "__array__")
    if isinstance(data, Dataset) or (hasattr(data, "__getitem__") and not alone):
        return _from_dataset(data, default_collate, classes)
    raise InputError(
        f"data: got {type(data).__name__}; give a LabelledSet, a pair (inputs, labels), "
        "a map-style Dataset or a DataLoader of one"
    )


def _as_tensor(values: Any, which: str) -> Tensor:
    """Values as a tensor; those that no tensor holds are refused."""
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"data: {which} cannot be made a tensor: {reason(error)}; give numbers") from error


def as_part(data: Data, argument: str) -> LabelledSet:
    """The same for a function whose argument has a name of its own, which errors then give."""
    try:
        return as_labelled(data)
    except InputError as error:
        raise InputError(f"{argument}: {str(error).removeprefix('data: ')}") from error


def _from_tensors(inputs: Inputs, labels: Tensor, classes: Sequence[str] | None) -> LabelledSet:
    labels = _check_labels(labels)
    held = batches.tensors(inputs)
    if not all(tensor.ndim for tensor in held):
        raise InputError("data: inputs hold a single number; give tensors with a row for each sample")
    lengths = {len(tensor) for tensor in held}
    if lengths != {len(labels)}:
        raise InputError(f"data: {sorted(lengths)} inputs but {len(labels)} labels; give one label per input")
    return LabelledSet(
        lambda chosen: batches.take(inputs, chosen),
        labels,
        _names(labels, classes),
        torch.arange(len(labels)),
        in_memory=True,
    )


def _from_dataset(dataset: Any, collate: Collate, classes: Sequence[str] | None) -> LabelledSet:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise InputError("data: an iterable dataset cannot be split; give a map-style dataset or stacked tensors")

    def read(positions: Tensor) -> tuple[Inputs, Tensor]:
        try:
            samples = [dataset[i] for i in positions.tolist()]
        except OSError as error:
            raise FileError(f"data: a sample cannot be read: {error}; give the data where it can be read") from error
        return _separate(stack(samples, collate))

    targets = _known_targets(dataset)
    if targets is None:
        chunks = torch.arange(len(dataset)).split(CHUNK)
        targets = torch.cat([_one_each(read(chunk)[1]).reshape(-1) for chunk in chunks]) if len(dataset) else []
    labels = _check_labels(_as_tensor(targets, "labels"))
    if classes is None:
        classes = _known_names(dataset)
    # A loader's own collate function may pad, so that batches differ in shape.
    ragged = None if collate is default_collate else Ragged(dataset.__getitem__, lambda s: _separate(collate(s))[0])
    names, index = _names(labels, classes), torch.arange(len(labels))
    return LabelledSet(lambda p: read(p)[0], labels, names, index, ragged=ragged)


def _known_targets(dataset: Any) -> Any:
    """Labels that a dataset offers without reading samples, as torchvision's do; None if none."""
    if isinstance(dataset, Subset):
        inner = _known_targets(dataset.dataset)
        return None if inner is None else torch.as_tensor(inner)[torch.as_tensor(dataset.indices)]
    targets = getattr(dataset, "targets", None)
    usable = targets is not None and len(targets) == len(dataset) and getattr(dataset, "target_transform", None) is None
    return targets if usable else None


def _known_names(dataset: Any) -> Sequence[str] | None:
    """Class names, as datasets of torchvision or Hugging Face offer them; None if none."""
    if isinstance(dataset, Subset):
        return _known_names(dataset.dataset)
    features = getattr(dataset, "features", None)
    columns = [features[key] for key in LABEL_KEYS if key in features] if isinstance(features, Mapping) else []
    return getattr(dataset, "classes", None) or next((getattr(column, "names", None) for column in columns), None)


def _separate(batch: Any) -> tuple[Inputs, Tensor]:
    """Split a collated batch into inputs and labels."""
    if isinstance(batch, Mapping):
        key = next((key for key in LABEL_KEYS if key in batch), None)
        if key is None:
            raise InputError(f"data: a sample has the keys {sorted(batch)}; one of them must be 'label' or 'labels'")
        return {name: value for name, value in batch.items() if name != key}, batch[key]
    if isinstance(batch, (tuple, list)) and len(batch) >= 2:
        inputs = batch[0] if len(batch) == 2 else tuple(batch[:-1])
        return inputs, batch[-1]
    raise InputError(f"data: a sample is a {type(batch).__name__}; it must be (input, label) or a dict with 'label'")


def _one_each(labels: Tensor) -> Tensor:
    """The labels of n samples; those of several classes at once are refused."""
    if isinstance(labels, Tensor) and labels.ndim == 2 and labels.shape[1] > 1:
        raise InputError(
            f"data: a sample has {labels.shape[1]} labels; a multi-label model cannot be operated on: "
            "give one class for each sample"
        )
    return labels


def _check_labels(labels: Tensor) -> Tensor:
    labels = _one_each(labels)
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex():
        raise InputError(
            f"data: labels are {labels.dtype} of shape {tuple(labels.shape)}; give whole numbers of shape (N,)"
        )
    if len(labels) == 0:
        raise InputError("data: the set is empty; give at least one sample")
    return labels.to("cpu", torch.int64)


def _names(labels: Tensor, classes: Sequence[str] | None) -> tuple[str, ...]:
    if classes is not None:
        return tuple(str(name) for name in classes)
    return numbered_names(labels)
