"""A loader's sampler says which samples are meant: it is honoured or refused, never ignored."""

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import hessian_surgery as hs

DATA = TensorDataset(torch.arange(12.0)[:, None], torch.arange(12) % 3)
CHOSEN = [7, 2, 9, 4]


def drawn(loader):
    found = hs.as_labelled(loader)
    return found.inputs().squeeze(1).int().tolist(), found.labels.tolist()


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": SubsetRandomSampler(CHOSEN)},
        {"batch_sampler": BatchSampler(SubsetRandomSampler(CHOSEN), 2, drop_last=True)},
    ],
)
def test_a_loader_of_some_samples_gives_these_and_no_others(options):
    assert drawn(DataLoader(DATA, **options)) == ([2, 4, 7, 9], [2, 1, 1, 0])


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": True, "batch_size": 5, "drop_last": True}, {"sampler": SequentialSampler(DATA)}]
)
def test_a_loader_of_all_samples_gives_all_in_order(options):
    assert drawn(DataLoader(DATA, **options))[0] == list(range(12))


class Odd(BatchSampler):
    """Only every other sample."""


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"sampler": WeightedRandomSampler([1.0] * 12, 12)}, "WeightedRandomSampler"),
        ({"sampler": RandomSampler(DATA, num_samples=5)}, "RandomSampler"),
        ({"sampler": RandomSampler(DATA, replacement=True)}, "RandomSampler"),
        ({"sampler": [0, 2, 4]}, "list"),
        ({"batch_sampler": Odd(SequentialSampler(DATA), 2, False)}, "Odd"),
    ],
)
def test_another_sampler_is_refused(options, kind):
    with pytest.raises(hs.InputError, match=f"draws samples by a {kind}; give a Subset of the dataset"):
        hs.as_labelled(DataLoader(DATA, **options))
