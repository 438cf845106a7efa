"""Warnings: classes that seem swapped; texts that were cut off, counted while they are read."""

import pytest
import torch

import hessian_surgery as hs
from hessian_surgery.data.ragged import Ragged
from hessian_surgery.data.texts import CutOff, CutTokens
from hessian_surgery.operation.warnings import cut_off_warning, swapped_warning


def texts(lengths, most, reads):
    """Texts of so many tokens, cut off at `most`; `reads` gets each position that is read."""

    def read(position):
        reads.append(position)
        tokens = {"input_ids": torch.ones(min(lengths[position], most), dtype=torch.int64)}
        return CutTokens(tokens) if lengths[position] > most else tokens

    def collate(rows):
        return {"input_ids": torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True)}

    ragged = Ragged(read, collate)
    labels = torch.arange(len(lengths)) % 2
    return hs.LabelledSet(ragged.fetch, labels, ("a", "b"), torch.arange(len(lengths)), ragged=ragged)


@pytest.mark.parametrize(("lengths", "count"), [([3, 4, 5, 9], 2), ([5, 5, 6], 3), ([4, 4], 0), ([2, 4], 0)])
def test_each_text_is_read_once_and_those_that_were_cut_off_are_counted(lengths, count):
    reads = []
    data = texts(lengths, 4, reads)
    assert data.cut is None
    held = data.resident()
    assert reads == list(range(len(lengths)))
    assert held.cut == (CutOff(count, 4) if count else None)
    assert held.resident().cut == held.cut
    assert held.subset(torch.tensor([0])).cut is None


def test_one_sentence_tells_of_all_parts():
    long, short = texts([3, 9, 9], 4, []).resident(), texts([1, 2], 4, []).resident()
    assert cut_off_warning({"calibration": short, "held-out": None}) is None
    assert cut_off_warning({"calibration": long}) == "2 of 3 calibration texts were cut off at 4 tokens"
    both = cut_off_warning({"calibration": long, "held-out": long})
    assert both == "2 of 3 calibration texts and 2 of 3 held-out texts were cut off at 4 tokens"


def test_two_classes_that_are_mostly_called_by_each_other_are_named():
    labels = torch.arange(4).repeat_interleave(10)
    predicted = labels.clone()
    predicted[:6], predicted[10:16] = 1, 0
    names = ("circle", "cross", "blob", "ring")
    assert swapped_warning(labels, labels, names) is None
    said = "most of circle is called cross, and most of cross circle: check the order of the classes"
    assert swapped_warning(predicted, labels, names) == said
    # One way only is a weak class; half is not most; outputs beyond the classes have no names.
    assert swapped_warning(torch.where(labels == 1, 0, labels), labels, names) is None
    predicted[15] = 1
    assert swapped_warning(predicted, labels, names) is None
    assert swapped_warning(torch.full_like(labels, 9), labels, names) is None


def test_few_images_are_no_reason_and_many_classes_cost_nothing():
    few = torch.tensor([0, 0, 1, 1, 2])
    assert swapped_warning(torch.tensor([1, 1, 0, 0, 2]), few, ("a", "b", "c")) is None
    # A table of all pairs would take 80 GB.
    names = tuple(map(str, range(100_000)))
    labels = torch.arange(100_000).repeat_interleave(6)
    predicted = labels.clone()
    predicted[labels == 7], predicted[labels == 99_999] = 99_999, 7
    assert swapped_warning(predicted, labels, names).startswith("most of 7 is called 99999, and most of 99999 7:")


def test_a_model_with_swapped_classes_is_told_by_diagnose_and_operate():
    draw = torch.Generator().manual_seed(0)
    model = torch.nn.Linear(3, 3)
    with torch.no_grad():
        model.weight.copy_(torch.eye(3)[[1, 0, 2]])
        model.bias.zero_()

    def images(count):
        labels = torch.arange(3).repeat(count)
        return 2 * torch.eye(3)[labels] + torch.randn(len(labels), 3, generator=draw), labels

    train, calibration, heldout = images(20), images(60), images(60)
    found = hs.diagnose(model, training_data=train, calibration_data=calibration)
    assert any("most of 0 is called 1, and most of 1 0" in warning for warning in found.warnings)
    outcome = hs.operate(model, training_data=train, calibration_data=calibration, heldout_data=heldout)
    assert any("check the order of the classes" in warning for warning in outcome.findings.warnings)
