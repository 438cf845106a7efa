import torch

from hessian_surgery.losses import cross_entropy, focal


def test_losses_against_their_definitions():
    logits, labels = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0, 1])
    p = logits.softmax(1)[torch.arange(6), labels]
    assert torch.allclose(cross_entropy(logits, labels), (-p.log()).mean())
    assert torch.allclose(focal(logits, labels), (-((1 - p) ** 2) * p.log()).mean())
    assert torch.allclose(focal(logits, labels, gamma=0), cross_entropy(logits, labels))
