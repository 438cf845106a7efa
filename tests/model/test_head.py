import pytest
import torch
from torch import nn

import hessian_surgery as hs
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.model.head import compute_features, find_head, find_head_on
from hessian_surgery.model.resnet import resnet18
from hessian_surgery.model.smallnet import SmallNet


class Named(nn.Module):
    """An encoder and a head; returns a tuple of logits and features."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 5)
        self.unused = nn.Linear(5, 3)
        self.classify = nn.Linear(5, 3)

    def forward(self, x):
        features = self.encoder(x).tanh()
        return self.classify(features), features


def test_the_head_of_a_small_net_and_of_a_resnet():
    small, deep = SmallNet(10), resnet18(10)
    head = find_head(hs.Classifier(small), torch.randn(2, 1, 8, 8))
    assert head.name == "fc"
    assert head.module is small.fc
    assert (head.weight_name, head.bias_name) == ("fc.weight", "fc.bias")
    assert {head.weight_name, head.bias_name} <= dict(small.named_parameters()).keys()
    assert find_head(hs.Classifier(deep), torch.randn(2, 3, 32, 32)).module is deep.fc


def test_heads_behind_a_tuple_a_custom_forward_and_alone():
    inputs = torch.randn(6, 4)
    named = Named()
    assert find_head(hs.Classifier(named), inputs).name == "classify"
    second = hs.Classifier(named, forward=lambda module, x: {"logits": module(x)[0].view(-1, 3)})
    assert find_head(second, inputs).name == "classify"
    lone = nn.Linear(4, 3)
    alone = find_head_on(hs.Classifier(lone), hs.as_labelled((inputs, torch.arange(6) % 3)))
    assert alone.module is lone
    assert (alone.weight_name, alone.bias_name) == ("weight", "bias")


@pytest.mark.parametrize("after", [nn.ReLU(), nn.ReLU(inplace=True), nn.LogSoftmax(dim=1), nn.Linear(3, 3, bias=False)])
def test_a_layer_with_something_after_it_is_no_head(after):
    """Even if what comes after it changes nothing on these inputs, or works in place."""
    layer = nn.Linear(4, 3)
    nn.init.constant_(layer.bias, 100.0)
    found = [find_head(hs.Classifier(nn.Sequential(layer, last)), torch.randn(6, 4)) for last in (nn.Identity(), after)]
    assert found[0].module is layer
    assert found[1] is None or found[1].module is after


def test_features_go_through_the_head_to_the_logits(trained, digits_parts):
    trained.train()
    classifier = hs.Classifier(trained)
    data = digits_parts.heldout
    before = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    head = find_head(classifier, data.fetch(torch.arange(2)))
    features, logits = compute_features(classifier, head, data, batch_size=100)
    assert features.shape == (len(data), 128)
    assert logits.shape == (len(data), 10)
    assert features.dtype == logits.dtype == torch.float32
    assert not features.requires_grad
    assert torch.equal(logits, compute_logits(classifier, data, batch_size=100))
    with torch.no_grad():
        assert torch.allclose(head.module(features), logits, atol=1e-5)
        trained.eval()
        assert torch.allclose(trained.features(data.inputs()), features, atol=1e-5)
    assert all(torch.equal(before[name], tensor) for name, tensor in trained.state_dict().items())
    assert not trained.fc._forward_hooks
    assert not trained.fc._forward_pre_hooks


class Cosine(nn.Linear):
    """A layer that is linear in name only."""

    def forward(self, x):
        return super().forward(nn.functional.normalize(x, dim=1))


class Tied(nn.Module):
    """A net whose head shares its weight with the layer before it."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 4)
        self.head.weight = self.first.weight

    def forward(self, x):
        return self.head(self.first(x))


@pytest.mark.parametrize(
    "module",
    [Cosine(4, 3), Tied(), nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))],
    ids=lambda m: type(m).__name__,
)
def test_a_layer_that_cannot_be_edited_alone_is_no_head(module):
    assert find_head(hs.Classifier(module), torch.randn(2, 4)) is None
