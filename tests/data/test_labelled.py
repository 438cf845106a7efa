import pytest
import torch
from PIL import Image
from torch import nn
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


class ClassLabel:
    """Like Hugging Face's feature of that name."""

    names = ("ant", "bee", "cat")


class WithFeatures(Dicts):
    features = {"x": object(), "label": ClassLabel()}  # noqa: RUF012


def test_names_of_hugging_face_and_of_subsets_are_kept():
    assert hs.as_labelled(WithFeatures()).classes == ("ant", "bee", "cat")
    assert hs.as_labelled(DataLoader(WithFeatures())).classes == ("ant", "bee", "cat")
    assert hs.as_labelled(Subset(WithTargets(), [0, 1])).classes == ("ant", "bee", "cat")
    assert hs.as_labelled(WithFeatures(), classes=("x", "y", "z")).classes == ("x", "y", "z")
    assert hs.as_labelled(Dicts()).classes == ("0", "1", "2")


def test_names_of_a_real_hugging_face_dataset_are_kept():
    datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets is optional")
    numbers = datasets.Sequence(datasets.Value("float32"))
    features = datasets.Features({"x": numbers, "label": datasets.ClassLabel(names=["no", "yes"])})
    held = datasets.Dataset.from_dict({"x": [[0.0, 1.0], [2.0, 3.0]], "label": [1, 0]}, features=features)
    with pytest.raises(hs.InputError, match=r"'x' of a sample is a list of numbers; .*set_format\('torch'\)"):
        hs.as_labelled(held)
    data = hs.as_labelled(held.with_format("torch"))
    assert data.classes == ("no", "yes")
    assert data.labels.tolist() == [1, 0]
    assert data.inputs()["x"].tolist() == [[0.0, 1.0], [2.0, 3.0]]


LONGER = [(torch.zeros(3), 0), (torch.zeros(5), 1)]
LARGER = [(torch.zeros(3, 8, 8), 0), (torch.zeros(3, 8, 9), 1)]


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (LONGER, r"part 0 of a sample has shape \(3,\) here and \(5,\) there; pad .*, or give a DataLoader"),
        (
            LARGER,
            r"part 0 of a sample has shape \(3, 8, 8\) here and \(3, 8, 9\) there; resize all",
        ),
        ([{"input_ids": [1, 2, 3], "label": 0}], "'input_ids' of a sample is a list of numbers; give tensors"),
        ([{"x": X[0], "text": "good", "label": 0}], "'text' of a sample is text; give tokens"),
        ([(Image.new("RGB", (8, 8)), 0)], "part 0 of a sample is a PIL image; make it a tensor in the .* transform"),
        ([(X[0], None)], "samples cannot be stacked .*; give a DataLoader with a collate_fn"),
    ],
)
def test_samples_that_torch_cannot_stack_are_explained(samples, message):
    with pytest.raises(hs.InputError, match=f"^data: {message}"):
        hs.as_labelled(samples).inputs()


def test_a_loaders_own_collate_function_is_left_alone():
    def padded(samples):
        width = max(len(x) for x, _ in samples)
        held = [nn.functional.pad(x, (0, width - len(x))) for x, _ in samples]
        return torch.stack(held), torch.tensor([y for _, y in samples])

    assert hs.as_labelled(DataLoader(LONGER, collate_fn=padded)).inputs().shape == (2, 5)

    def broken(samples):
        raise RuntimeError("a bug of the user's")

    with pytest.raises(RuntimeError, match="a bug"):
        hs.as_labelled(DataLoader(LONGER, collate_fn=broken))


@pytest.mark.parametrize(
    ("inputs", "noun"),
    [
        (torch.zeros(12, 3, 8, 8), "images"),
        ({"pixel_values": torch.zeros(12, 3, 8, 8)}, "images"),
        ({"input_ids": torch.zeros(12, 9), "attention_mask": torch.zeros(12, 9)}, "texts"),
        (torch.zeros(12, 9, 64), "samples"),
        (X, "samples"),
    ],
)
def test_images_have_rows_and_columns(inputs, noun):
    assert hs.as_labelled((inputs, Y)).noun == noun


class Stream(IterableDataset):
    def __iter__(self):
        yield X[0], 0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ((X, Y[:5]), "12.* inputs but 5 labels"),
        ((X, Y.float()), "labels are torch.float32"),
        ((X, torch.zeros(len(Y), 4)), "a sample has 4 labels; a multi-label model cannot be operated on"),
        (
            DataLoader(TensorDataset(X, torch.zeros(len(Y), 4))),
            "a sample has 4 labels; a multi-label model cannot be operated on",
        ),
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
