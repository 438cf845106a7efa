"""Batches that do not fit go through in parts, with the same results up to rounding."""

import pytest
import torch
from benchmarks.resnet20 import network as resnet20
from torch import nn

import hessian_surgery as hs
from conftest import points
from hessian_surgery.curvature.gauss_newton import GaussNewton
from hessian_surgery.curvature.hessian import Hessian
from hessian_surgery.directions.logit_changes import logit_tangents
from hessian_surgery.directions.soft_accuracy import soft_accuracy_gradients
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.model.halving import in_parts
from hessian_surgery.model.head import compute_features, find_head
from hessian_surgery.model.parameters import parameter_space


class Limited(nn.Module):
    """A module on a device whose memory holds so many samples at a time.

    Args:
        inner: the module.
        most: samples that fit.
        with_gradients: those that fit if gradients are taken.
    """

    def __init__(self, inner: nn.Module, most: int, with_gradients: int | None = None) -> None:
        super().__init__()
        self.inner = inner
        self.most = most
        self.with_gradients = with_gradients or most
        self.refused = 0

    def forward(self, x):
        if len(x) > (self.with_gradients if torch.is_grad_enabled() else self.most):
            self.refused += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return self.inner(x)


@pytest.fixture
def digits(digits_parts):
    return digits_parts.calibration.subset(torch.arange(100))


def test_a_batch_that_does_not_fit_is_halved_until_it_does():
    sizes = []

    def function(inputs, labels):
        sizes.append(len(labels))
        if len(labels) > 3:
            raise torch.OutOfMemoryError
        return inputs["x"] + labels[:, None]

    limited = in_parts(function, torch.cat)
    x, labels = torch.rand(10, 2), torch.arange(10)
    assert torch.equal(limited({"x": x}, labels), x + labels[:, None])
    assert sizes == [10, 5, 3, 3, 3, 1]
    sizes.clear()
    limited({"x": x[:4]}, labels[:4])  # what did not fit is not tried again
    assert sizes == [3, 1]


def test_one_sample_that_does_not_fit_is_an_error():
    def function(x):
        raise torch.OutOfMemoryError("too large")

    with pytest.raises(torch.OutOfMemoryError, match="too large"):
        in_parts(function, torch.cat)(torch.rand(5, 1))


def test_logits_and_features(trained, digits):
    whole, parts = Classifier(trained), Classifier(Limited(trained, 7))
    assert torch.allclose(compute_logits(parts, digits), compute_logits(whole, digits), atol=1e-5)
    head = find_head(whole, digits.fetch(torch.arange(2)))
    for one, other in zip(*(compute_features(own, head, digits) for own in (whole, parts)), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("kind", [Hessian, GaussNewton])
def test_eigenvalues_are_the_same(kind, trained, digits):
    """To 1e-6 of the largest, in single precision."""
    limited = Limited(trained, 13)
    found = [hs.lanczos(kind(own, digits), 1, steps=8, seed=0).eigenvalues for own in (trained, limited)]
    assert limited.refused == 3  # 100, 50 and 25 do not fit
    assert abs(found[0] - found[1]).max() <= 1e-6 * found[0].max()


def test_gradients_and_tangents(trained, digits):
    found = []
    limited = Limited(trained, 9, 5)
    for module in (trained, limited):
        classifier, space = Classifier(module), parameter_space(trained)
        named = parameter_space(module)
        gradients = dict(soft_accuracy_gradients(classifier, named, digits, 1.0, 64))
        tangent = logit_tangents(classifier, named, digits)(gradients[0] / gradients[0].norm(), None)
        found.append([*gradients.values(), tangent])
        assert named.dimension == space.dimension
    assert limited.refused >= 4
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-5 * float(one.abs().max()))


def test_an_operation_goes_on_and_decides_the_same():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
    parts = {f"{name}_data": points(80, i) for i, name in enumerate(("training", "calibration", "heldout"))}
    start = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    found = []
    for module in (net, Limited(net, 150, 40)):
        net.load_state_dict(start)
        outcome = hs.operate(module, config=hs.SurgeryConfig(iterations=1, budget=0.02), **parts)
        found.append([metrics.as_dict() for metrics in outcome.findings.heldout.metrics()])
    assert found[0] == found[1]


@pytest.mark.full
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_gpu_that_is_full():
    """On a GPU where little memory is left, the leading eigenvalue is the same to 1e-6."""
    torch.manual_seed(0)
    net = resnet20().double().cuda().eval()
    labels = torch.arange(256) % 10
    data = hs.as_labelled((torch.randn(256, 3, 32, 32, dtype=torch.float64), labels))
    before = torch.cuda.memory_allocated()
    start = hs.lanczos(Hessian(net, data), 1, seed=0, tolerance=1e-3).eigenvalues
    needed = torch.cuda.max_memory_allocated() - before
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    # Nearly all that is needed are activations: half of that cannot hold them.
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + needed / 2) / total)
    try:
        found = hs.lanczos(Hessian(net, data), 1, seed=0, tolerance=1e-3).eigenvalues
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert abs(found - start).max() <= 1e-6 * start.max()
