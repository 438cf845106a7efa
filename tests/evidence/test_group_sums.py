import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hessian_surgery.evidence.group_sums import ROW, make_groups
from hessian_surgery.evidence.leading_outputs import leading_outputs, winners


@given(sizes=st.lists(st.integers(0, 3 * ROW), min_size=1, max_size=6), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_sums_are_those_of_a_matrix(sizes, seed):
    if sum(sizes) == 0:
        return
    draw = torch.Generator().manual_seed(seed)
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    owner = owner[torch.randperm(len(owner), generator=draw)]
    values = torch.randn(2, len(owner), generator=draw, dtype=torch.float64)
    matrix = torch.nn.functional.one_hot(owner, len(sizes)).double()
    groups = make_groups(owner, len(sizes))
    assert torch.allclose(groups.collect(values), values @ matrix)
    by_group = torch.randn(3, len(sizes), generator=draw, dtype=torch.float64)
    assert torch.equal(groups.spread(by_group), by_group @ matrix.T)


def test_memory_follows_the_items():
    groups = make_groups(torch.cat([torch.zeros(10_000, dtype=torch.long), torch.arange(1000)]), 1000)
    assert sum(rows.numel() for rows in groups.levels) < 1.2 * (10_000 + 1000 * len(groups.levels) * ROW)
    assert len(groups.levels) == 4


def test_what_is_not_finite_does_not_hide_the_truth():
    logits = torch.tensor([[1.0, torch.nan, 2.0], [torch.inf, 0, 2.0]])
    assert leading_outputs(logits, torch.tensor([0, 2]))[:, 0].tolist() == [0, 2]


def test_leading_outputs_have_the_truth_first():
    logits = torch.tensor([[5.0, 4, 3, 2], [0, 1, 2, 3], [1, 1, 1, 1]])
    labels = torch.tensor([3, 3, 2])
    assert leading_outputs(logits, labels, 2)[:2].tolist() == [[3, 0], [3, 2]]
    assert leading_outputs(logits, labels)[:, 0].tolist() == [3, 3, 2]
    assert sorted(leading_outputs(logits, labels)[0].tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", range(3))
def test_winners_are_those_of_an_argmax_even_where_logits_are_equal(seed):
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, 3, (200, 6), generator=draw).float()
    outputs = leading_outputs(logits, torch.randint(0, 6, (200,), generator=draw))
    assert torch.equal(winners(logits.gather(1, outputs), outputs), logits.argmax(dim=1))
