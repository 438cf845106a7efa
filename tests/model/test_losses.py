import pytest
import torch

from hessian_surgery.errors import InputError
from hessian_surgery.model.losses import class_balanced, cross_entropy, focal, make_loss


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
    with pytest.raises(InputError, match="loss: got 'hinge'; give one of cross-entropy, focal, class-balanced"):
        make_loss("hinge", torch.ones(3))
