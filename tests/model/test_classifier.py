import subprocess
import sys
from textwrap import indent

import pytest
import torch
from torch import nn

import hessian_surgery as hs
from conftest import build
from hessian_surgery.errors import InputError
from hessian_surgery.model.classifier import Classifier, as_classifier
from hessian_surgery.model.evaluation import check_classifier


class Takes(nn.Module):
    """A net that takes any structure and returns `wrap` of its logits."""

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


def test_a_custom_forward():
    model = Takes()
    classifier = Classifier(model, forward=lambda module, inputs: module.fc(inputs["nested"][0]))
    assert classifier.logits({"nested": (torch.ones(1, 2),)}).shape == (1, 3)


@pytest.mark.parametrize("wrap", [lambda z: z[0], lambda z: "text", lambda z: {}], ids=["1-d", "text", "empty"])
def test_wrong_output_is_named(wrap):
    with pytest.raises(InputError, match="model: its output is"):
        Classifier(Takes(wrap)).logits(torch.randn(4, 2))


class Restless(nn.Module):
    """A net that disturbs all it can: buffers, random state, gradients, flags."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 3)
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("last", torch.zeros(1))
        self.register_buffer("later", None)

    def forward(self, x):
        self.seen += len(x)
        self.last = torch.rand(1)
        self.later = torch.rand(1)
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
    assert model.later is None


def test_tensors_cached_in_evaluation_can_be_differentiated():
    class Caching(nn.Linear):
        table = None

        def forward(self, x):
            if self.table is None:
                self.table = torch.ones_like(x)
            return super().forward(x * self.table)

    model = Caching(2, 3)
    data = hs.as_labelled((torch.randn(6, 2), torch.arange(6) % 3))
    check_classifier(Classifier(model), data)
    assert (hs.Hessian(model, data) @ torch.ones(9)).shape == (9,)


@pytest.mark.full
def test_kernel_settings_come_back():
    """Whichever of torch's two interfaces for precision the user has used."""
    script = """
import torch
import hessian_surgery as hs
from hessian_surgery.model.classifier import _precision_settings, deterministic_kernels
SETTING
def now():
    return [getattr(place, name) for place, name, _ in _precision_settings()] + [torch.backends.cudnn.deterministic]
before = now()
with deterministic_kernels(exact=True):
    assert set(now()) <= {"ieee", False, True}, now()
    assert torch.backends.cudnn.deterministic
with deterministic_kernels():
    assert now()[:-1] == before[:-1]
assert now() == before, (before, now())
"""
    settings = [
        "",
        "torch.backends.cudnn.allow_tf32 = False",
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
    ]
    code = "".join(f"def check{i}():\n" + indent(script.replace("SETTING", s), "    ") for i, s in enumerate(settings))
    for i in range(len(settings)):  # each in a process of its own: torch refuses to mix the two interfaces
        done = subprocess.run([sys.executable, "-c", f"{code}\ncheck{i}()"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_as_classifier_keeps_a_classifier():
    classifier = Classifier(build("conv"))
    assert as_classifier(classifier) is classifier
    assert as_classifier(classifier.module).module is classifier.module


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Takes, "^model: got the class Takes; give a trained instance of it$"),
        ({"fc": 1}, "^model: got dict; give an nn.Module or a Classifier of one$"),
        (nn.Flatten(), "^model: Flatten has no parameters; give a trained network$"),
    ],
    ids=["class", "dict", "no parameters"],
)
def test_what_is_no_model_is_refused(model, message):
    with pytest.raises(InputError, match=message):
        as_classifier(model)
