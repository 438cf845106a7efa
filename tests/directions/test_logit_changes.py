import copy

import pytest
import torch
from torch import nn

import hessian_surgery as hs
from conftest import build, whole_changes
from hessian_surgery import cuda_graphs as capture
from hessian_surgery.curvature.krylov import gaussian
from hessian_surgery.directions import family
from hessian_surgery.directions.family import Probe
from hessian_surgery.directions.logit_changes import (
    PROBE,
    lacks_forward_mode,
    logit_difference,
    logit_tangents,
    logits_after,
    logits_after_steps,
)
from hessian_surgery.directions.random import random_directions
from hessian_surgery.directions.soft_accuracy import soft_accuracy_gradients
from hessian_surgery.model.classifier import deterministic_kernels
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.model.resnet import resnet18
from hessian_surgery.seeding import generator


def random_direction(space, seed=0):
    return gaussian(space, generator(seed, "test"))


def plain_logits(module, inputs):
    with hs.Classifier(module).evaluating(), torch.no_grad():
        return module(inputs)


def difference(module, space, direction, inputs, amplitude=1e-5):
    """(z(θ + a q) − z(θ − a q)) / 2a in the weights' own precision."""
    sides = []
    for sign in (1, -1):
        with space.keeping_weights():
            space.perturb(direction, sign * amplitude)
            sides.append(plain_logits(module, inputs))
    return (sides[0] - sides[1]) / (2 * amplitude)


def test_a_tangent_is_the_limit_of_differences(net, batch):
    """In float64, over batches that do not divide the images."""
    inputs, labels = batch
    data = hs.as_labelled((inputs, labels))
    space = hs.parameter_space(net)
    for seed in range(3):
        direction = random_direction(space, seed)
        tangent = logit_tangents(hs.Classifier(net), space, data, batch_size=4)(direction, None)
        expected = difference(net, space, direction, inputs)
        assert tangent.dtype == torch.float32
        assert (tangent - expected).norm() < 1e-6 * expected.norm()


@pytest.mark.parametrize("name", ["conv", "batchnorm"])
def test_a_tangent_is_what_torch_func_gives(name, batch):
    module = build(name)
    inputs, labels = batch
    space = hs.parameter_space(module, "*weight")
    direction = random_direction(space)
    found = logit_tangents(hs.Classifier(module), space, hs.as_labelled((inputs, labels)))(direction, None)
    module.eval()
    weights = dict(zip(space.names, (p.detach() for p in space.parameters), strict=True))
    tangents = dict(zip(space.names, space.split(direction), strict=True))
    call = lambda w: torch.func.functional_call(module, w, (inputs,))  # noqa: E731
    expected = torch.func.jvp(call, (weights,), (tangents,))[1]
    assert torch.allclose(found.double(), expected, rtol=1e-6, atol=1e-7)


def test_a_tangent_leaves_no_trace(net, batch):
    """Weights, buffers, modes, gradients and requires_grad are as they were."""
    net.train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    space = hs.parameter_space(net)
    space.parameters[0].grad = gradient = torch.ones_like(space.parameters[0])
    logit_tangents(hs.Classifier(net), space, hs.as_labelled(batch))(random_direction(space), None)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert all(module.training for module in net.modules())
    assert space.parameters[0].grad is gradient
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in net.parameters())


class Tied(nn.Module):
    """One weight under two names."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(12, 12, bias=False), nn.Linear(12, 12, bias=False)
        self.second.weight = self.first.weight
        self.out = nn.Linear(12, 3)

    def forward(self, x):
        return self.out(self.second(torch.tanh(self.first(x))))


def test_a_tied_weight_moves_wherever_it_is_used(batch):
    torch.manual_seed(0)
    module = Tied().double()
    space = hs.parameter_space(module)
    assert space.names == ("first.weight", "out.weight", "out.bias")
    direction = random_direction(space)
    found = logit_tangents(hs.Classifier(module), space, hs.as_labelled(batch))(direction, None)
    expected = difference(module, space, direction, batch[0])
    assert (found - expected).norm() < 1e-6 * expected.norm()
    assert module.second.weight is module.first.weight


class Two(nn.Module):
    """Two inputs by name."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(5, 3), nn.Linear(7, 3)

    def forward(self, left, right):
        return torch.tanh(self.left(left)) * self.right(right)


class Named(torch.utils.data.Dataset):
    """Samples that are dicts."""

    def __init__(self, inputs, labels):
        self.inputs, self.labels = inputs, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {name: tensor[i] for name, tensor in self.inputs.items()}, int(self.labels[i])


def test_inputs_may_be_a_dict():
    torch.manual_seed(0)
    module = Two().double()
    inputs = {"left": torch.randn(9, 5).double(), "right": torch.randn(9, 7).double()}
    data = hs.as_labelled(Named(inputs, torch.arange(9) % 3))
    space = hs.parameter_space(module)
    direction = random_direction(space)
    found = logit_tangents(hs.Classifier(module), space, data, batch_size=4)(direction, None)
    weights = dict(zip(space.names, (p.detach() for p in space.parameters), strict=True))
    tangents = dict(zip(space.names, space.split(direction), strict=True))
    call = lambda w: torch.func.functional_call(module, w, (), inputs)  # noqa: E731
    assert torch.allclose(found.double(), torch.func.jvp(call, (weights,), (tangents,))[1], rtol=1e-6, atol=1e-7)


def test_weights_that_do_not_move_the_logits_have_a_tangent_of_0(batch):
    module = build("conv")
    module.append(nn.Identity())
    module[-1].unused = nn.Parameter(torch.ones(3))
    space = hs.parameter_space(module, "*unused")
    found = logit_tangents(hs.Classifier(module), space, hs.as_labelled(batch))(torch.ones(3), None)
    assert found.shape == (10, 3)
    assert not found.any()


class BackwardOnly(torch.autograd.Function):
    """tanh, with a backward pass and no forward mode."""

    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * (1 - y * y)


class Without(nn.Module):
    """A net whose middle has no forward mode, or the same net with one."""

    def __init__(self, forward_mode):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(12, 8), nn.Linear(8, 3)
        self.middle = torch.tanh if forward_mode else BackwardOnly.apply

    def forward(self, x):
        return self.second(self.middle(self.first(x)))


@pytest.fixture
def points():
    """Forty samples of three classes."""
    return hs.as_labelled((torch.randn(40, 12, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 3))


def probe_on(module, data):
    classifier = hs.Classifier(module)
    return Probe(classifier, hs.parameter_space(module), data, compute_logits(classifier, data))


def test_differences_are_nearly_the_tangents(points):
    families = []
    for forward_mode in (True, False):
        probe = probe_on(Without(forward_mode), points)
        before = probe.space.snapshot()
        found = random_directions(probe, 4)
        families.append(found)
        assert all(torch.equal(p, saved) for p, saved in zip(probe.space.parameters, before, strict=True))
        tangent = logit_tangents(probe.classifier, probe.space, points)
        if not forward_mode:
            with pytest.raises(RuntimeError) as caught:
                tangent(random_direction(probe.space), None)
            assert lacks_forward_mode(caught.value)
            continue
        for i in range(4):
            exact = tangent(found.vector(i), None) * found.scales[i]
            assert 0 < (exact - whole_changes(found, 3)[i]).norm() < 3e-2 * exact.norm()
    assert families[0].scales == pytest.approx(families[1].scales, rel=1e-5)


@pytest.fixture
def forward_mode(monkeypatch):
    """Directions are probed by forward mode, as on a GPU."""
    monkeypatch.setattr(family, "_prefers_forward_mode", lambda device: True)


def test_a_layer_without_forward_mode_falls_back_to_differences(points, forward_mode, monkeypatch):
    probe = probe_on(Without(forward_mode=False), points)
    found = random_directions(probe, 2)
    with monkeypatch.context() as patch:
        patch.setattr(family, "_prefers_forward_mode", lambda device: False)
        expected = random_directions(probe, 2)
    assert torch.equal(found.changes, expected.changes)
    other = probe_on(Without(forward_mode=True), points)
    found = random_directions(other, 1)
    tangent = logit_tangents(other.classifier, other.space, points)(found.vector(0), None)
    assert torch.equal(whole_changes(found, 3)[0], tangent * found.scales[0])


class Broken(Without):
    """A net with a bug that shows in forward mode only."""

    def forward(self, x):
        if torch.autograd.forward_ad.unpack_dual(self.first.weight).tangent is not None:
            raise RuntimeError("the layer ran out of ink")
        return super().forward(x)


def test_an_error_of_a_layer_itself_is_not_swallowed(points, forward_mode):
    probe = probe_on(Broken(forward_mode=True), points)
    before = probe.space.snapshot()
    with pytest.raises(RuntimeError, match="ran out of ink"):
        random_directions(probe, 2)
    assert all(torch.equal(p, saved) for p, saved in zip(probe.space.parameters, before, strict=True))


@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        (NotImplementedError("Trying to use forward AD with _ctc_loss that does not support it"), True),
        (RuntimeError("TorchScript failed: Trying to use forward AD with _ctc_loss"), True),
        (RuntimeError("must implement the jvp function to use it with forward mode AD"), True),
        (RuntimeError("ZeroTensors are immutable. Please use the materialized zero tensor"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x3 and 5x3)"), False),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
    ],
)
def test_errors_that_mean_no_forward_mode(error, lacks):
    assert lacks_forward_mode(error) is lacks


@pytest.mark.parametrize("guess", [1e-6, 1.0, 1e4])
def test_a_difference_finds_its_amplitude_from_any_guess(guess):
    slope = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    found, amplitude = logit_difference(lambda step: step.sum() * slope, torch.ones(1), guess, unit=2.0)
    assert torch.allclose(found, slope, rtol=1e-4)
    assert PROBE / 4 < amplitude * float(slope.square().mean().sqrt()) / 2.0 < PROBE * 4


def test_logits_after_a_step_are_those_of_the_moved_weights(net, batch):
    inputs, labels = batch
    space = hs.parameter_space(net)
    before = space.snapshot()
    step = 0.1 * random_direction(space)
    found = logits_after(hs.Classifier(net), space, step, hs.as_labelled((inputs, labels)), batch_size=3)
    assert all(torch.equal(p, saved) for p, saved in zip(space.parameters, before, strict=True))
    space.perturb(step)
    assert torch.allclose(found.double(), plain_logits(net, inputs), atol=1e-6)


def test_logits_after_many_steps_are_those_of_the_moved_weights(net, batch):
    """For some images in any order, and for all of them."""
    data = hs.as_labelled(batch)
    space = hs.parameter_space(net)
    after_step = logits_after_steps(hs.Classifier(net), space, data, batch_size=3)
    step = 0.1 * random_direction(space)
    every = logits_after(hs.Classifier(net), space, step, data)
    assert torch.allclose(after_step(step, None), every)
    some = torch.tensor([7, 0, 3, 9, 1])
    assert torch.allclose(after_step(step, some), every[some])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: passes are not recorded here")
def test_a_recorded_pass_gives_what_a_plain_pass_gives():
    """Tangents, steps and gradients, in uneven batches, before and after the weights move."""
    torch.manual_seed(0)
    net = resnet18(10).cuda()
    classifier = hs.Classifier(net)
    space = hs.parameter_space(net)
    data = hs.as_labelled((torch.randn(390, 3, 32, 32), torch.arange(390) % 10))
    resident = data.resident("cuda")
    direction = 1e-3 * random_direction(space)
    tangent = logit_tangents(classifier, space, resident)
    after_step = logits_after_steps(classifier, space, resident)
    with deterministic_kernels(exact=True):
        for _ in range(2):
            plain = copy.deepcopy(net).cpu().double()
            own = hs.parameter_space(plain)
            double = hs.as_labelled((data.inputs().double(), data.labels))
            step = direction.cpu().double()
            slope = logit_tangents(hs.Classifier(plain), own, double)(step, None)
            assert (tangent(direction, None).cpu() - slope).norm() < 1e-3 * slope.norm()
            moved = logits_after(hs.Classifier(plain), own, step, double)
            some = torch.arange(0, 390, 3)
            assert (after_step(direction, None).cpu() - moved).norm() < 1e-3 * moved.norm()
            assert (after_step(direction, some).cpu() - moved[some]).norm() < 1e-3 * moved.norm()
            found = dict(soft_accuracy_gradients(classifier, space, resident, 1.0, 16))
            expected = dict(soft_accuracy_gradients(hs.Classifier(plain), own, double, 1.0, 390))
            for label, gradient in expected.items():
                assert (found[label].cpu() - gradient).norm() < 1e-3 * gradient.norm()
            space.perturb(5 * direction)
    assert not capture._refused
