"""Samples of different length: a batch is padded, and nothing depends on which batch it was."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import hessian_surgery as hs
from hessian_surgery.curvature.memory import input_bytes, saved_bytes
from hessian_surgery.data.data_hash import data_hash, image_hashes
from hessian_surgery.data.splits import join_sets


class Words(list):
    """Lists of numbers, from 1 to 9, with a label."""

    classes = ("odd", "even")


def pad(rows):
    width = max(len(row["input_ids"]) for row in rows)
    ids = [row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in rows]
    tokens = torch.tensor(ids)
    return {
        "input_ids": tokens,
        "attention_mask": (tokens > 0).long(),
        "labels": torch.tensor([row["label"] for row in rows]),
    }


def loader(rows):
    return DataLoader(Words(rows), collate_fn=pad)


def made(lengths, start=0):
    return [{"input_ids": [1 + (start + i) % 9] * n, "label": i % 2} for i, n in enumerate(lengths)]


class Mean(torch.nn.Module):
    """Logits from the mean of the tokens that count."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(10, 4)
        self.head = torch.nn.Linear(4, 2)

    def forward(self, input_ids, attention_mask):
        kept = attention_mask[..., None].float()
        return self.head((self.table(input_ids) * kept).sum(1) / kept.sum(1))


@settings(deadline=None, max_examples=30)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=12), data=st.data())
def test_any_choice_is_padded_to_its_longest(lengths, data):
    whole = hs.as_labelled(loader(made(lengths)))
    for held in (whole, whole.resident()):
        chosen = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=8))
        ids = held.fetch(torch.tensor(chosen))["input_ids"]
        assert ids.shape[0] == len(chosen)
        assert [int((row > 0).sum()) for row in ids] == [lengths[i] for i in chosen]
        if held.ragged is not None:
            assert ids.shape[1] == max(lengths[i] for i in chosen)
            again = held.subset(torch.tensor(chosen)).inputs()["input_ids"]
            assert torch.equal(again, ids)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(1, 5), min_size=2, max_size=9))
def test_hashes_do_not_depend_on_padding(lengths):
    rows = made(lengths)
    whole = hs.as_labelled(loader(rows))
    assert image_hashes(whole) == image_hashes(whole.resident())
    alone = [image_hashes(hs.as_labelled(loader([row])).resident())[0] for row in rows]
    assert image_hashes(whole) == alone
    assert data_hash(whole) == data_hash(whole.resident())


def test_samples_of_one_length_are_stacked():
    assert hs.as_labelled(loader(made([3, 3, 3]))).resident().ragged is None
    assert hs.as_labelled(loader(made([3, 2, 3]))).resident().ragged is not None


def test_more_samples_than_are_read_at_once():
    lengths = [1 + i % 7 for i in range(700)]
    held = hs.as_labelled(loader(made(lengths))).resident()
    assert held.in_memory
    shapes = [inputs["input_ids"].shape for inputs, _ in held.batches(4, torch.device("cpu"))]
    assert {tuple(shape) for shape in shapes} == {(4, 4), (4, 7), (4, 6), (4, 5)} | {tuple(shapes[-1])}


def test_memory_counts_padding():
    long_last = hs.as_labelled(loader(made([1] * 7 + [8])))
    assert input_bytes(long_last) == 8 * 8 * 2  # eight tokens and eight marks, of eight bytes
    assert saved_bytes(hs.Classifier(Mean()), long_last) > 8 * 4 * 4
    assert input_bytes(long_last.resident().subset(torch.tensor([0]))) == 8 * 2


def test_two_sets_are_joined():
    first, second = (hs.as_labelled(loader(made(n, start))) for n, start in (([1, 2, 1, 3], 0), ([4, 4], 5)))
    both = join_sets(first, second)
    assert len(both) == 6
    assert both.fetch(torch.tensor([0, 5]))["input_ids"].shape == (2, 4)
    with pytest.raises(hs.InputError, match="heldout_data: 1 text is in calibration_data"):
        join_sets(first, first.subset(torch.tensor([1])))


def test_an_operation_takes_them():
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)

    def rows(count):
        lengths = torch.randint(8, 15, (count,), generator=draw).tolist()
        labels = [i % 2 for i in range(count)]
        chosen = [
            torch.randint(1 + 2 * label, 8, (n,), generator=draw).tolist()
            for n, label in zip(lengths, labels, strict=True)
        ]
        return [{"input_ids": ids, "label": label} for ids, label in zip(chosen, labels, strict=True)]

    train, calibration, heldout = (loader(rows(n)) for n in (200, 300, 300))
    model = Mean()
    with torch.no_grad():
        model.head.bias.copy_(torch.tensor([0.3, -0.3]))
    outcome = hs.operate(model, training_data=train, calibration_data=calibration, heldout_data=heldout)
    assert outcome.findings.noun == "texts"
    assert "held-out texts" in outcome.verdict.sentence or "texts" in repr(outcome)
    assert "image" not in outcome.summary()
