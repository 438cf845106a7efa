"""Which samples a `DataLoader` draws from its dataset."""

from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
)

from hessian_surgery.errors import InputError


def sampled_dataset(loader: "DataLoader[Any]") -> Any:
    """The dataset of a loader, or the part of it that the loader's sampler names.

    Raises:
        InputError: the sampler is of another kind, so nobody can tell which samples it means.
    """
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        return dataset  # refused by whoever reads it
    sampler = loader.sampler
    if loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler:
        sampler = loader.batch_sampler
    elif loader.batch_sampler is not None:
        sampler = loader.batch_sampler.sampler
    if type(sampler) is SubsetRandomSampler:
        return Subset(dataset, sorted(int(i) for i in sampler.indices))
    whole = type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(dataset)  # type: ignore[arg-type]
    if type(sampler) is SequentialSampler or whole:
        return dataset
    raise InputError(
        f"data: its DataLoader draws samples by a {type(sampler).__name__}; "
        "give a Subset of the dataset, or a loader without a sampler of its own"
    )
