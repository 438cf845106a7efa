import pytest
import torch
from torch import nn

from conftest import build
from hessian_surgery.classifier import Classifier, as_classifier, deterministic_kernels
from hessian_surgery.errors import InputError


class Takes(nn.Module):
    """Accepts any structure; returns what `wrap` makes of the logits."""

    def __init__(self, wrap=lambda logits: logits):
        super().__init__()
        self.fc = nn.Linear(2, 3)
        self.wrap = wrap

    def forward(self, a, b=None):
        return self.wrap(self.fc(a if b is None else a + b))


@pytest.mark.parametrize("structure", ["tensor", "tuple", "list", "dict"])
def test_logits_of_every_input_structure(structure):
    x = torch.randn(4, 2)
    model = Takes()
    inputs = {"tensor": x, "tuple": (x, x), "list": [x, x], "dict": {"a": x, "b": x}}[structure]
    expected = model.fc(x if structure == "tensor" else 2 * x)
    assert torch.equal(Classifier(model).logits(inputs), expected)


@pytest.mark.parametrize(
    "wrap",
    [lambda z: {"logits": z}, lambda z: (z, None), lambda z: type("Output", (), {"logits": z})()],
    ids=["dict", "tuple", "object"],
)
def test_logits_of_every_output_structure(wrap):
    model = Takes(wrap)
    x = torch.randn(4, 2)
    assert torch.equal(Classifier(model).logits(x), model.fc(x))


def test_forward_of_ones_own():
    model = Takes()
    classifier = Classifier(model, forward=lambda module, inputs: module.fc(inputs["nested"][0]))
    assert classifier.logits({"nested": (torch.ones(1, 2),)}).shape == (1, 3)


@pytest.mark.parametrize("wrap", [lambda z: z[0], lambda z: "text", lambda z: {}], ids=["1-d", "text", "empty"])
def test_wrong_output_is_named(wrap):
    with pytest.raises(InputError, match="model: its output is"):
        Classifier(Takes(wrap)).logits(torch.randn(4, 2))


class Restless(nn.Module):
    """Disturbs everything it can: buffers, random state, gradients, flags."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 3)
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("last", torch.zeros(1))

    def forward(self, x):
        self.seen += len(x)
        self.last = torch.rand(1)
        self.fc.weight.grad = torch.ones_like(self.fc.weight)
        self.fc.bias.requires_grad_(False)
        return self.fc(x)


def test_evaluating_leaves_no_trace():
    model = Restless()
    model.train()
    model.fc.eval()
    model.fc.weight.grad = gradient = torch.full((3, 2), 7.0)
    random_state, buffers = torch.get_rng_state(), [b.clone() for b in model.buffers()]
    objects = list(model.buffers())
    with pytest.raises(KeyError), Classifier(model).evaluating():
        assert not model.training
        model(torch.ones(5, 2))
        raise KeyError
    assert model.training
    assert not model.fc.training
    assert model.fc.weight.grad is gradient
    assert model.fc.bias.requires_grad
    assert all(now is then for now, then in zip(model.buffers(), objects, strict=True))
    assert all(torch.equal(now, then) for now, then in zip(model.buffers(), buffers, strict=True))
    assert torch.equal(torch.get_rng_state(), random_state)


def test_kernel_settings_come_back():
    torch.set_float32_matmul_precision("medium")
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32
    with deterministic_kernels(exact=True):
        assert torch.get_float32_matmul_precision() == "highest"
        assert torch.backends.cudnn.deterministic
        assert not torch.backends.cudnn.allow_tf32
    assert torch.get_float32_matmul_precision() == "medium"
    assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32) == before
    torch.set_float32_matmul_precision("highest")


def test_as_classifier_keeps_a_classifier():
    classifier = Classifier(build("conv"))
    assert as_classifier(classifier) is classifier
    assert as_classifier(classifier.module).module is classifier.module
