import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import hessian_surgery as hs

X, Y = torch.arange(24.0).reshape(12, 2), torch.arange(12) % 3


class Dicts(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        return {"x": X[i], "label": Y[i]}


class WithTargets(Dataset):
    """Like torchvision's: it offers labels without reading a sample."""

    targets = Y.tolist()
    classes = ("ant", "bee", "cat")

    def __init__(self):
        self.read = []

    def __len__(self):
        return 12

    def __getitem__(self, i):
        self.read.append(i)
        return X[i], self.targets[i]


def test_pair_of_tensors():
    data = hs.as_labelled((X, Y))
    assert len(data) == 12
    assert data.classes == ("0", "1", "2")
    assert data.counts.tolist() == [4, 4, 4]
    assert torch.equal(data.inputs(), X)
    assert hs.as_labelled(data) is data


@pytest.mark.parametrize(
    "source",
    [
        TensorDataset(X, Y),
        DataLoader(TensorDataset(X, Y), batch_size=5, shuffle=True, drop_last=True),
        WithTargets(),
    ],
    ids=["dataset", "loader", "targets"],
)
def test_datasets_and_loaders_keep_their_order_and_lose_nothing(source):
    data = hs.as_labelled(source)
    assert torch.equal(data.labels, Y)
    assert torch.equal(data.inputs(), X)


def test_structured_samples():
    data = hs.as_labelled(Dicts())
    assert torch.equal(data.inputs()["x"], X)
    assert torch.equal(data.labels, Y)
    two = hs.as_labelled(TensorDataset(X, 2 * X, Y))
    first, second = two.inputs()
    assert torch.equal(second, 2 * first)
    pair = hs.as_labelled(({"a": X, "b": (X, X)}, Y)).subset(torch.tensor([3]))
    assert torch.equal(pair.inputs()["b"][1], X[3:4])


def test_nothing_is_read_before_it_is_asked_for():
    dataset = WithTargets()
    data = hs.as_labelled(dataset)
    assert data.classes == ("ant", "bee", "cat")
    assert dataset.read == []
    data.subset(torch.tensor([7, 2])).inputs()
    assert dataset.read == [7, 2]


def test_subset_of_subset_and_resident():
    data = hs.as_labelled((X, Y)).subset(torch.tensor([8, 4, 0])).subset(torch.tensor([1, 2]))
    assert data.index.tolist() == [4, 0]
    for same in (data, data.resident()):
        assert torch.equal(same.inputs(), X[[4, 0]])
        assert same.labels.tolist() == [1, 0]
        assert same.index.tolist() == [4, 0]


def test_batches_are_in_order_and_complete():
    parts = list(hs.as_labelled((X, Y)).batches(5, torch.device("cpu")))
    assert [len(labels) for _, labels in parts] == [5, 5, 2]
    assert torch.equal(torch.cat([inputs for inputs, _ in parts]), X)


def test_labels_without_reading_only_where_they_can_be_trusted():
    subset = WithTargets()
    data = hs.as_labelled(Subset(subset, [5, 3]))
    assert data.labels.tolist() == [2, 0]
    assert subset.read == []
    changed = WithTargets()
    changed.target_transform = lambda label: label
    hs.as_labelled(changed)
    assert len(changed.read) == 12


def test_numpy_arrays():
    data = hs.as_labelled((X.numpy(), Y.numpy()))
    assert torch.equal(data.inputs(), X)


class Stream(IterableDataset):
    def __iter__(self):
        yield X[0], 0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ((X, Y[:5]), "12.* inputs but 5 labels"),
        ((X, Y.float()), "labels are torch.float32"),
        ((X[:0], Y[:0]), "the set is empty"),
        ((X, Y - 1), "sample 0 has label -1, outside the 2 classes"),
        (Stream(), "iterable"),
        (DataLoader(Stream()), "iterable"),
        ("text.csv", "got str"),
        (TensorDataset(X), "a sample is a list|a sample is a tuple"),
        ([{"x": 1, "y": 2}], "one of them must be 'label'"),
        (({"x": X, "path": "a.png"}, Y), "inputs hold a str"),
    ],
)
def test_bad_data_is_named(source, message):
    with pytest.raises(hs.InputError, match=message):
        hs.as_labelled(source)
