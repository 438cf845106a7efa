import copy
import math
import shutil
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import hessian_surgery as hs
from hessian_surgery.baselines import training_step
from hessian_surgery.baselines.train import MOMENTUM, WARM_UP, TrainConfig, train
from hessian_surgery.model.evaluation import predict
from hessian_surgery.model.smallnet import SmallNet
from hessian_surgery.seeding import generator

AUGMENTED = TrainConfig(epochs=3, batch_size=64, shift=1, flip=True, learning_rate=0.2)


@pytest.fixture
def data(digits_parts):
    return digits_parts.training.subset(torch.arange(200))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return SmallNet(10).eval()


def tensors(module):
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_two_epochs_are_sgd_by_hand(net, data):
    """With Nesterov's momentum and weight decay; the rate rises, then falls along half a cosine."""
    config = TrainConfig(loss="focal", epochs=2, batch_size=32, learning_rate=0.05, seed=3)
    net = net.double().train()
    inputs = data.inputs().double()
    trained = copy.deepcopy(net)
    train(trained, hs.as_labelled((inputs, data.labels), data.classes), config)
    velocity = [torch.zeros_like(p) for p in net.parameters()]
    steps = 2 * (len(data) // 32)
    number = 0
    for epoch in range(2):
        for positions in torch.randperm(len(data), generator=generator(3, "train", epoch)).split(32)[: steps // 2]:
            p = net(inputs[positions]).softmax(dim=1).gather(1, data.labels[positions, None])
            loss = -((1 - p) ** 2 * p.log()).mean()
            rate = 0.05 * min(1, (number + 1) / (WARM_UP * steps)) * (1 + math.cos(math.pi * number / steps)) / 2
            gradients = torch.autograd.grad(loss, list(net.parameters()))
            with torch.no_grad():
                for weight, gradient, own in zip(net.parameters(), gradients, velocity, strict=True):
                    pull = gradient + 5e-4 * weight
                    own.mul_(MOMENTUM).add_(pull)
                    weight -= rate * (pull + MOMENTUM * own)
            number += 1
    assert number == steps == 12
    for name, tensor in net.state_dict().items():
        # The rate is kept in float32.
        assert torch.allclose(trained.state_dict()[name], tensor, rtol=1e-5, atol=1e-7), name


def test_the_rate_rises_to_its_height_and_falls_to_nothing():
    config = TrainConfig(learning_rate=0.4)
    rates = [config.rate(step, 1000) for step in range(1000)]
    assert rates.index(max(rates)) == WARM_UP * 1000 - 1
    assert max(rates) == pytest.approx(0.4, rel=0.03)
    assert 0 < rates[0] < 0.01
    assert 0 < rates[-1] < 1e-5
    assert rates[100:] == sorted(rates[100:], reverse=True)


def test_a_net_learns_the_digits(net, digits_parts):
    train(net, digits_parts.training, TrainConfig(epochs=20, batch_size=32))
    right = predict(hs.Classifier(net), digits_parts.calibration) == digits_parts.calibration.labels
    assert right.double().mean() > 0.75


@pytest.mark.parametrize("at", [2, 3, 5, 8])
def test_a_killed_run_resumes_and_ends_the_same(at, net, data, tmp_path):
    """A kill leaves the folder as it is in epoch 1, at its end, in epochs 2 and 3."""
    whole, interrupted, resumed = (copy.deepcopy(net) for _ in range(3))
    train(whole, data, AUGMENTED)

    def kill(done, total):
        if done == at:
            shutil.copytree(tmp_path / "run", tmp_path / "killed")

    train(interrupted, data, AUGMENTED, folder=tmp_path / "run", progress=kill)
    steps = []
    torch.manual_seed(at)
    train(resumed, data, AUGMENTED, folder=tmp_path / "killed", progress=lambda *now: steps.append(now))
    start = 3 * ((at - 1) // 3)
    assert steps == [(start, 9), *((i, 9) for i in range(start, 10))]
    assert not same(tensors(net), tensors(whole))
    assert same(tensors(whole), tensors(interrupted))
    assert same(tensors(whole), tensors(resumed))


def test_a_finished_run_is_loaded_and_another_refused(net, data, tmp_path):
    first, again = copy.deepcopy(net), copy.deepcopy(net)
    train(first, data, AUGMENTED, folder=tmp_path)
    train(again, data, AUGMENTED, folder=tmp_path, progress=lambda *_: pytest.fail("it was finished"))
    assert same(tensors(first), tensors(again))
    before = tensors(net)
    brighter = hs.as_labelled((data.inputs() + 1, data.labels), data.classes)
    for given, config in [(data, TrainConfig(epochs=3, batch_size=64)), (brighter, AUGMENTED)]:
        with pytest.raises(hs.InputError, match="holds a training with other options, starting weights, images or"):
            train(net, given, config, folder=tmp_path)
    assert same(before, tensors(net))


def test_nothing_else_changes_and_seeds_decide(net, data):
    others = [copy.deepcopy(net) for _ in range(2)]
    torch.manual_seed(9)
    state = torch.get_rng_state()
    train(net, data, AUGMENTED)
    assert torch.equal(torch.get_rng_state(), state)
    assert not net.training
    assert all(p.grad is None and p.requires_grad for p in net.parameters())
    torch.manual_seed(10)
    train(others[0], data, AUGMENTED)
    train(others[1], data, TrainConfig(**vars(AUGMENTED) | {"seed": 1}))
    assert same(tensors(net), tensors(others[0]))
    assert not torch.equal(net.fc.weight, others[1].fc.weight)


def test_a_replayed_step_sees_the_rate_and_the_images_of_its_batch(net, data, monkeypatch):
    """With a stand-in for the recorder, which also warms up, and replays by running the step."""
    replayed = copy.deepcopy(net)
    train(net, data, AUGMENTED)

    def record(work, device, warm_up):
        for _ in range(warm_up):
            work()
        return SimpleNamespace(replay=work), None

    monkeypatch.setattr(training_step, "can_record", lambda device: True)
    monkeypatch.setattr(training_step, "record", record)
    train(replayed, data, AUGMENTED)
    for name, tensor in net.state_dict().items():
        assert torch.allclose(tensor, replayed.state_dict()[name], rtol=1e-4, atol=1e-6), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: steps are not recorded here")
def test_a_gpu_trains_as_well(net, digits_parts):
    train(net.cuda(), digits_parts.training, TrainConfig(epochs=20, batch_size=32))
    right = predict(hs.Classifier(net), digits_parts.calibration) == digits_parts.calibration.labels
    assert right.double().mean() > 0.75


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"epochs": 0}, "epochs: got 0; it must be at least 1"),
        ({"batch_size": 201}, r"batch_size: got 201; it must be at most the number of training images \(200\)"),
        ({"weight_decay": -1.0}, "weight_decay: got -1.0; it must be 0 or more"),
        ({"shift": -1}, "shift: got -1; it must be 0 or more"),
        ({"loss": "hinge"}, "loss: got 'hinge'; it must be one of cross-entropy, focal, class-balanced"),
        ({"learning_rate": 1e30}, r"learning_rate: got 1e\+30, and the loss in epoch \d is"),
    ],
)
def test_bad_choices_are_named(choices, message, net, data):
    before = tensors(net)
    with pytest.raises(hs.InputError, match=message):
        train(net, data, TrainConfig(**choices))
    assert same(before, tensors(net))


@pytest.mark.parametrize("choices", [{"shift": 1}, {"flip": True}])
def test_only_images_are_augmented(choices):
    points = (torch.randn(30, 2), torch.arange(30) % 3)
    with pytest.raises(hs.InputError, match="as the samples are no images"):
        train(nn.Linear(2, 3), points, TrainConfig(batch_size=10, **choices))
