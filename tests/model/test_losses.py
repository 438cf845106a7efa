import pytest
import torch
from torch import nn

import hessian_surgery as hs
from hessian_surgery.errors import InputError
from hessian_surgery.model.losses import (
    check_loss,
    class_balanced,
    class_weighted,
    cross_entropy,
    focal,
    label_smoothing,
    make_loss,
)


def test_losses_against_their_definitions():
    logits, labels = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0, 1])
    p = logits.softmax(1)[torch.arange(6), labels]
    assert torch.allclose(cross_entropy(logits, labels), (-p.log()).mean())
    assert torch.allclose(focal(logits, labels), (-((1 - p) ** 2) * p.log()).mean())
    assert torch.allclose(focal(logits, labels, gamma=0), cross_entropy(logits, labels))


def test_class_balanced_weights_are_the_inverse_effective_numbers():
    logits, labels = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 2, 0, 1])
    counts, beta = torch.tensor([100, 10, 1, 0]), 0.9
    numbers = (1 - beta ** counts[:3].double()) / (1 - beta)
    weights = 4 * (1 / numbers) / (1 / numbers).sum()
    p = logits.softmax(1)[torch.arange(6), labels]
    assert torch.allclose(class_balanced(counts, beta)(logits, labels), (-weights[labels] * p.log()).mean())
    default = class_balanced(counts)(logits, labels)
    assert torch.allclose(default, class_balanced(counts, 110 / 111)(logits, labels))


def test_class_balanced_on_equal_counts_is_cross_entropy():
    logits, labels = torch.randn(6, 3, dtype=torch.float64), torch.arange(6) % 3
    assert torch.allclose(class_balanced(torch.tensor([7, 7, 7]))(logits, labels), cross_entropy(logits, labels))
    assert torch.allclose(make_loss("class-balanced", torch.ones(3))(logits, labels), cross_entropy(logits, labels))
    assert make_loss("focal", torch.ones(3)) is focal


def test_an_unknown_loss_is_named():
    with pytest.raises(InputError, match="loss: got 'hinge'; it must be one of cross-entropy, focal, class-balanced"):
        make_loss("hinge", torch.ones(3))


def test_losses_with_numbers():
    logits, labels = torch.randn(6, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 2, 0, 1])
    counts = torch.tensor([5, 3, 1])
    log_p = logits.log_softmax(1)
    own = -log_p[torch.arange(6), labels]
    smooth = 0.8 * own - 0.2 / 3 * log_p.sum(1)
    assert torch.allclose(make_loss("label-smoothing:0.2", counts)(logits, labels), smooth.mean())
    assert torch.allclose(label_smoothing(logits, labels, 0.0), cross_entropy(logits, labels))
    assert make_loss("label-smoothing", counts) is label_smoothing
    weights = 3 * torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64) / 8
    weighted = make_loss("class-weights:1,2,5", counts)(logits, labels)
    assert torch.allclose(weighted, (weights[labels] * own).mean())
    assert torch.allclose(class_weighted([2, 4, 10])(logits, labels), weighted)
    assert torch.allclose(make_loss("focal:0", counts)(logits, labels), cross_entropy(logits, labels))
    balanced = make_loss("class-balanced:0.9", counts)(logits, labels)
    assert torch.allclose(balanced, class_balanced(counts, 0.9)(logits, labels))


@pytest.mark.parametrize(
    "text",
    [
        "cross-entropy:1",
        "focal:-1",
        "focal:1,2",
        "label-smoothing:1",
        "class-balanced:2",
        "focal:inf",
        "focal:nan",
        "class-weights",
        "class-weights:1",
        "class-weights:1,0",
        "class-weights:1,nan",
    ],
)
def test_wrong_numbers_are_refused(text):
    with pytest.raises(InputError, match=f"loss: got '{text}'; it must be"):
        check_loss(text)


def test_as_many_weights_as_classes():
    with pytest.raises(InputError, match="class-weights with 3 numbers, one for each class"):
        make_loss("class-weights:1,2", torch.ones(3))


@pytest.mark.parametrize("loss", ["label-smoothing", "focal:1", "class-weights:1,2,5", "class-balanced"])
def test_every_loss_has_spikes(loss):
    """Curvature is the loss's own: it agrees with a dense Hessian of that loss."""
    torch.manual_seed(0)
    net = nn.Linear(3, 3).double()
    inputs, labels = torch.randn(12, 3, dtype=torch.float64), torch.arange(12) % 3
    function = make_loss(loss, torch.tensor([6, 4, 2]))
    product = hs.Hessian(net, hs.as_labelled((inputs, labels)), loss=function)

    def of(flat):
        return function(inputs @ flat[:9].view(3, 3).T + flat[9:], labels)

    flat = torch.cat([net.weight.detach().reshape(-1), net.bias.detach()])
    dense = torch.func.hessian(of)(flat)
    vector = torch.randn(12, dtype=torch.float64)
    assert torch.allclose(product @ vector, dense @ vector)
    assert hs.SpikeSearch(loss=loss).as_dict()["loss"] == loss
