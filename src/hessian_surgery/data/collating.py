"""Samples to a batch; where torch cannot stack them, one line that says what to do."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from PIL.Image import Image
from torch import Tensor
from torch.utils.data import default_collate

from hessian_surgery.errors import InputError

Collate: TypeAlias = Callable[[list[Any]], Any]


def stack(samples: list[Any], collate: Collate) -> Any:
    """Make a batch of samples.

    Args:
        samples: at least one.
        collate: a loader's; what torch's own cannot stack is explained.
    """
    if collate is not default_collate:
        return collate(samples)
    for which, value in _parts(samples[0]):
        if isinstance(value, list) and value and isinstance(value[0], int | float):
            raise InputError(f"data: {which} is a list of numbers; give tensors, as by dataset.set_format('torch')")
        if isinstance(value, str):
            raise InputError(f"data: {which} is text; give tokens, and leave it out, as by dataset.remove_columns")
        if isinstance(value, Image):
            raise InputError(f"data: {which} is a PIL image; make it a tensor in the dataset's transform")
    try:
        return default_collate(samples)
    except (TypeError, RuntimeError) as error:
        raise InputError(f"data: {_reason(samples, error)}") from error


def _reason(samples: list[Any], error: Exception) -> str:
    """Why samples cannot be stacked, and what to do."""
    first = dict(_parts(samples[0]))
    for sample in samples[1:]:
        for which, value in _parts(sample):
            other = first.get(which)
            if isinstance(value, Tensor) and isinstance(other, Tensor) and value.shape != other.shape:
                shapes = f"{which} has shape {tuple(other.shape)} here and {tuple(value.shape)} there"
                if value.ndim > 2:
                    return f"{shapes}; resize all samples to one size in the dataset's transform"
                return f"{shapes}; pad all samples to one length, or give a DataLoader whose collate_fn does"
    return f"samples cannot be stacked ({str(error).splitlines()[0]}); give a DataLoader with a collate_fn for them"


def _parts(sample: Any) -> Iterator[tuple[str, Any]]:
    """What a sample holds, with its name or place."""
    if isinstance(sample, Mapping):
        yield from ((f"{name!r} of a sample", value) for name, value in sample.items())
    elif isinstance(sample, tuple | list):
        yield from ((f"part {i} of a sample", value) for i, value in enumerate(sample))
