import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hessian_surgery as hs
from hessian_surgery.data.splits import halves, join_sets

labels_of = st.lists(st.integers(0, 4), min_size=5, max_size=80).map(torch.tensor)


def labelled(labels):
    return hs.as_labelled((torch.zeros(len(labels), 1), labels), classes=list("abcde"))


@settings(deadline=None)
@given(labels=labels_of, seed=st.integers(0, 1000), share=st.floats(0.1, 0.9))
def test_split_is_a_stratified_partition(labels, seed, share):
    data = labelled(labels)
    first, second = hs.stratified_split(data, (share, 1 - share), seed)
    assert sorted(torch.cat([first.index, second.index]).tolist()) == list(range(len(labels)))
    assert ((first.counts - share * data.counts).abs() <= 0.5 + 1e-6).all()
    again, _ = hs.stratified_split(data, (share, 1 - share), seed)
    assert torch.equal(first.index, again.index)


def test_halves_are_the_same_for_all_who_ask():
    labels = torch.arange(103) % 5
    sides = halves(labels, 3)
    assert torch.equal(sides, halves(labels, 3))
    assert not torch.equal(sides, halves(labels, 4))
    for label in range(5):
        one, other = torch.bincount(sides[labels == label], minlength=2).tolist()
        assert abs(one - other) <= 1


def test_another_seed_splits_differently():
    data = labelled(torch.arange(100) % 5)
    assert not torch.equal(hs.stratified_split(data, seed=0)[0].index, hs.stratified_split(data, seed=1)[0].index)


@settings(deadline=None)
@given(labels=labels_of, cap=st.integers(1, 10), seed=st.integers(0, 9))
def test_cap_keeps_as_many_as_it_may(labels, cap, seed):
    data = labelled(labels)
    assert torch.equal(hs.cap_per_class(data, cap, seed).counts, data.counts.clamp(max=cap))


@settings(deadline=None)
@given(labels=labels_of, samples=st.integers(1, 90), seed=st.integers(0, 9))
def test_hessian_batches(labels, samples, seed):
    data = labelled(labels)
    for sampling in ("natural", "stratified"):
        batch = hs.hessian_batch(data, samples, sampling, seed)
        assert len(batch) == min(samples, len(data))
        assert len(batch.index.unique()) == len(batch)
    short = batch.counts < data.counts
    if short.any():  # classes that have samples left give equally many, to within one
        assert batch.counts[short].max() - batch.counts[short].min() <= 1
        assert (batch.counts[~short] <= batch.counts[short].min() + 1).all()


def test_redrawn_batches_differ():
    data = labelled(torch.arange(100) % 5)
    first, second = (hs.hessian_batch(data, 20, iteration=i) for i in (0, 1))
    assert not torch.equal(first.index, second.index)


def test_two_sets_are_joined_in_order():
    inputs, labels = torch.arange(40.0)[:, None], torch.arange(40) % 5
    data = hs.as_labelled((inputs, labels), classes=list("abcde"))
    first, second = hs.stratified_split(data)
    joined = join_sets(first, second)
    assert torch.equal(joined.inputs(), torch.cat([first.inputs(), second.inputs()]))
    assert torch.equal(joined.labels, torch.cat([first.labels, second.labels]))
    assert joined.index.tolist() == list(range(40))
    with pytest.raises(hs.InputError, match="are in calibration_data as well"):
        join_sets(first, first)
    with pytest.raises(hs.InputError, match=r"one set has the classes \('a', 'b', 'c'\)…, the other \('0', '1', '2'\)"):
        join_sets(first, hs.as_labelled((inputs, labels)))


def test_bad_requests_are_named():
    data = labelled(torch.arange(10) % 5)
    with pytest.raises(hs.InputError, match="fractions"):
        hs.stratified_split(data, (0.7, 0.7))
    with pytest.raises(hs.InputError, match="cap: got 0"):
        hs.cap_per_class(data, 0)
    with pytest.raises(hs.InputError, match="hessian_samples: got 0"):
        hs.hessian_batch(data, 0)


def test_every_form_of_data_can_be_split():
    pair = (torch.arange(100.0)[:, None], torch.arange(100) % 5)
    parts = hs.stratified_split(pair, seed=3)
    expected = hs.stratified_split(hs.as_labelled(pair), seed=3)
    assert [part.index.tolist() for part in parts] == [part.index.tolist() for part in expected]
