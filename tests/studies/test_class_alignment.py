import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import hessian_surgery as hs
from hessian_surgery.studies.class_alignment import alignment, class_gradients, shares_in_span, shuffled
from hessian_surgery.studies.study_inputs import open_finder


@pytest.fixture
def finder(net, batch):
    return open_finder(net, batch, hs.SpikeSearch(spikes=2, hessian_samples=10), "*", 0)


def test_class_gradients_add_up_to_that_of_the_batch(net, finder):
    found = class_gradients(finder)
    assert net.training
    inputs, labels = next(finder.data.batches(10, torch.device("cpu")))
    net.eval()
    whole = torch.autograd.grad(cross_entropy(net(inputs), labels), finder.space.parameters)
    weights = finder.data.counts.double() / len(labels)
    assert torch.allclose(weights @ found, finder.space.flatten(whole))


def test_groups_keep_the_images_own_labels(finder):
    """All images in one group give the batch's gradient, whatever the group is called."""
    one = class_gradients(finder, torch.full((10,), 7))
    assert one.shape == (1, finder.space.dimension)
    weights = finder.data.counts.double() / 10
    assert torch.allclose(one[0], weights @ class_gradients(finder))


def test_shares_are_those_of_a_dense_projection():
    torch.manual_seed(0)
    vectors, rows = torch.randn(4, 30, dtype=torch.float64), torch.randn(3, 30, dtype=torch.float64)
    rows = torch.cat([rows, rows[:1] - 2 * rows[1:2]])  # one that the others span
    projector = torch.linalg.pinv(rows) @ rows
    expected = (vectors @ projector).square().sum(1) / vectors.square().sum(1)
    assert shares_in_span(vectors, rows) == pytest.approx(expected.numpy())
    assert shares_in_span(rows, rows) == pytest.approx(np.ones(4))


def test_rows_of_any_length_and_precision_give_whole_shares():
    torch.manual_seed(0)
    rows = 1e-12 * torch.randn(3, 500_000)
    mixed = torch.tensor([[1.0, -2.0, 0.5]]) @ rows
    assert shares_in_span(mixed, rows) == pytest.approx([1], abs=1e-6)


def test_shuffled_groups_have_the_same_sizes():
    labels = torch.arange(40) % 4
    assert torch.equal(shuffled(labels, 0).bincount(), labels.bincount())
    assert not torch.equal(shuffled(labels, 0), labels)


def test_alignment_compares_three_spans(finder):
    found = alignment(finder, class_gradients(finder)[:2])
    assert found["classes"] == pytest.approx([1, 1])
    assert max(found["shuffled"]) < 1
    assert len(found["random"]) == 2
