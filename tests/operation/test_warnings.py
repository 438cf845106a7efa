"""Texts that were cut off are counted while they are read, and told once."""

import pytest
import torch

import hessian_surgery as hs
from hessian_surgery.data.ragged import Ragged
from hessian_surgery.data.texts import CutOff, CutTokens
from hessian_surgery.operation.warnings import cut_off_warning


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
