import copy
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import hessian_surgery as hs
from hessian_surgery import cuda_graphs
from hessian_surgery.baselines import training_step
from hessian_surgery.baselines.finetune import FINETUNES, FinetuneConfig, choose_finetune, finetune
from hessian_surgery.baselines.training_step import adam, recorded_step, start_training, step
from hessian_surgery.model.classifier import deterministic_kernels
from hessian_surgery.model.losses import make_loss
from hessian_surgery.model.resnet import resnet18
from hessian_surgery.model.smallnet import SmallNet
from hessian_surgery.seeding import generator

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: steps are not recorded here")


def searched(spikes, steps, samples):
    return hs.SpikeSearch(spikes=spikes, lanczos_steps=steps, hessian_samples=samples)


@pytest.fixture
def data(digits_parts):
    return digits_parts.training.subset(torch.arange(200))


def tensors(module):
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def moved(before, module):
    return {name for name, tensor in module.state_dict().items() if not torch.equal(before[name], tensor)}


class Random(nn.Module):
    """Two inputs, dropout, a weight that nothing reads, and a buffer that no state dict holds."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.fc = nn.Linear(8, 3)
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x, scale):
        if self.training:
            self.calls.add_(1)
        return self.fc(nn.functional.dropout(self.first(x) * scale, 0.5, self.training).relu())


def random_problem():
    torch.manual_seed(3)
    return Random(), ((torch.randn(30, 4), torch.rand(30, 1)), torch.arange(30) % 3)


def test_the_papers_fine_tunings_are_ready_made():
    assert FINETUNES["finetune"] == FinetuneConfig(epochs=15, learning_rate=1e-4, batch_size=64)
    assert FINETUNES["focal"].loss == "focal"
    assert (FINETUNES["class-balanced"].loss, FINETUNES["class-balanced"].head_epochs) == ("class-balanced", 5)
    assert FINETUNES["bulk"].loss == "cross-entropy"


def test_a_ready_made_fine_tuning_fits_the_training_images(data):
    """C − 1 spikes, or as many as are asked for, by 30 steps if these are enough."""
    assert choose_finetune("bulk", data).project == searched(None, 30, 128)
    assert searched(None, 30, 128).count(len(data.classes)) == 9
    assert choose_finetune("bulk", data, spikes=4).project == searched(4, 30, 128)
    assert choose_finetune("bulk", data, spikes=15).project == searched(15, None, 128)
    many = hs.as_labelled((torch.zeros(100, 1), torch.arange(100)))
    assert choose_finetune("bulk", many).project == searched(None, None, 128)
    rare = hs.as_labelled((torch.zeros(30, 1), torch.arange(30) % 10 // 8))
    assert rare.counts.tolist() == [24, 6]
    assert choose_finetune("class-balanced", rare) == FINETUNES["class-balanced"]
    balanced = hs.as_labelled((torch.zeros(43, 1), torch.arange(43) % 2))  # 22 and 21
    assert choose_finetune("class-balanced", balanced) == replace(FINETUNES["class-balanced"], head_epochs=0)
    assert choose_finetune("focal", rare) == FINETUNES["focal"]


def test_class_balanced_training_on_balanced_classes_is_cross_entropy(trained, digits_parts):
    """Then all effective numbers are the same, so all weights are 1 (the paper's table 7)."""
    labels = digits_parts.calibration.labels
    some = torch.cat([(labels == label).nonzero()[:12, 0] for label in range(10)])
    data = digits_parts.calibration.subset(some)
    assert data.counts.tolist() == [12] * 10
    nets = [copy.deepcopy(trained).double() for _ in range(2)]
    data = hs.as_labelled((data.inputs().double(), data.labels), data.classes)
    for net, name in zip(nets, ("finetune", "class-balanced"), strict=True):
        finetune(net, data, replace(choose_finetune(name, data), epochs=2, batch_size=40))
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


def cross_entropy_by_hand(logits, labels, counts):
    p = logits.softmax(dim=1)[torch.arange(len(labels)), labels]
    return -p.log().mean()


def focal_by_hand(logits, labels, counts):
    p = logits.softmax(dim=1)[torch.arange(len(labels)), labels]
    return -((1 - p) ** 2 * p.log()).mean()


def class_balanced_by_hand(logits, labels, counts):
    beta = (counts.sum() - 1) / counts.sum()
    weights = (1 - beta) / (1 - beta**counts)
    weights = len(counts) * weights / weights.sum()
    p = logits.softmax(dim=1)[torch.arange(len(labels)), labels]
    return -(weights[labels] * p.log()).mean()


@pytest.mark.parametrize(
    ("loss", "by_hand"),
    [
        ("cross-entropy", cross_entropy_by_hand),
        ("focal", focal_by_hand),
        ("class-balanced", class_balanced_by_hand),
    ],
)
def test_two_epochs_are_adam_by_hand(loss, by_hand, trained, data):
    """Each epoch has its own order and skips images that do not fill a batch."""
    data = data.subset(((torch.arange(200) % 10 < 4) | (data.labels > 5)).nonzero()[:, 0])
    assert 0 < 2 * data.counts.min() < data.counts.max()
    net = copy.deepcopy(trained).double().train()
    data = hs.as_labelled((data.inputs().double(), data.labels), data.classes)
    config = FinetuneConfig(loss=loss, epochs=2, learning_rate=1e-3, batch_size=32, seed=5)
    tuned = copy.deepcopy(net)
    inputs = data.inputs()
    finetune(tuned, data, config)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    steps = 0
    for epoch in range(2):
        for positions in torch.randperm(len(data), generator=generator(5, "finetune", epoch)).split(32):
            if len(positions) == 32:
                optimizer.zero_grad()
                by_hand(net(inputs[positions]), data.labels[positions], data.counts.double()).backward()
                optimizer.step()
                steps += 1
    assert 0 < steps < 2 * len(data) / 32
    assert moved(tensors(trained.double()), tuned) == set(net.state_dict())
    for name, tensor in net.state_dict().items():
        assert torch.allclose(tuned.state_dict()[name], tensor, rtol=1e-9, atol=1e-12), name


def test_nothing_else_changes(trained, data):
    module = nn.Sequential(trained.features, nn.Dropout(0.5), trained.fc)
    module[0][1].train()
    module[0][0].weight.requires_grad_(False)
    module[2].bias.grad = torch.full((10,), 7.0)
    modes = [layer.training for layer in module.modules()]
    before = tensors(module)
    weight = module[2].weight
    torch.manual_seed(9)
    state = torch.get_rng_state()
    precision = torch.backends.cudnn.deterministic
    with torch.no_grad():
        finetune(module, data, FinetuneConfig(epochs=1))
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.backends.cudnn.deterministic == precision
    assert [layer.training for layer in module.modules()] == modes
    assert [p.requires_grad for p in module.parameters()] == [False] + [True] * 7
    assert module[2].weight is weight
    assert [p.grad is None for p in module.parameters()] == [True] * 7 + [False]
    assert torch.equal(module[2].bias.grad, torch.full((10,), 7.0))
    assert moved(before, module) == set(before) - {"0.0.weight"}


def test_dropout_is_seeded():
    """The same seed gives the same weights, whatever the global state; another seed, others."""
    module, data = random_problem()
    config = FinetuneConfig(epochs=2, batch_size=8, learning_rate=1e-2)
    results = []
    for global_seed, options in [(1, config), (2, config), (2, replace(config, seed=1))]:
        torch.manual_seed(global_seed)
        net = copy.deepcopy(module)
        finetune(net, data, options)
        results.append(tensors(net))
    assert same(results[0], results[1])
    assert not torch.equal(results[1]["fc.weight"], results[2]["fc.weight"])
    assert torch.equal(results[0]["unused"], torch.ones(2))


def test_the_head_goes_first(trained, data):
    before = tensors(trained)
    moves = []
    config = FinetuneConfig(loss="class-balanced", epochs=3, head_epochs=2, batch_size=50)
    weights = {name for name, _ in trained.named_parameters()}

    def watch(done, total):
        assert total == 12
        assert (trained.features[0].weight.grad is None) == (done <= 8)  # no gradients that nobody needs
        moves.append(moved(before, trained) & weights)

    finetune(trained, data, config, progress=watch)
    assert moves[:8] == [{"fc.weight", "fc.bias"}] * 8
    assert moves[8:] == [weights] * 4
    assert all(p.requires_grad for p in trained.parameters())


def test_gradients_are_orthogonal_to_the_spikes(trained, data, monkeypatch):
    """The spikes are those of each epoch's weights; images and their order are the plain run's."""
    config = FinetuneConfig(epochs=2, batch_size=32, project=searched(4, 12, 16), learning_rate=1e-3)
    handed = []
    expected = []
    step_of_adam = torch.optim.Adam.step
    steps = len(data) // 32

    def spy(optimizer, *arguments):
        gradient = torch.cat([p.grad.reshape(-1) for p in trained.parameters()])
        if gradient.any():  # it is zero when Adam's state is made
            handed.append(gradient)
        return step_of_adam(optimizer, *arguments)

    def watch(operator, *arguments, **options):
        assert len(handed) == steps * len(expected)
        own = hs.Hessian(trained, hs.hessian_batch(data, 16, seed=0, iteration=len(expected)))
        expected.append(hs.lanczos(own, 4, steps=12, seed=0, iteration=len(expected)).vectors)
        return hs.lanczos(operator, *arguments, **options)

    monkeypatch.setattr(torch.optim.Adam, "step", spy)
    monkeypatch.setattr("hessian_surgery.curvature.search.lanczos", watch)
    start = copy.deepcopy(trained).train()
    finetune(trained, data, config)
    assert len(handed) == 2 * steps
    for i, gradient in enumerate(handed):
        assert torch.linalg.norm(expected[i // steps] @ gradient) < 1e-5 * torch.linalg.norm(gradient)
    # The spikes turn between epochs, and a plain gradient has a component along them.
    assert torch.linalg.norm(expected[0] @ handed[-1]) > 1e-4 * torch.linalg.norm(handed[-1])
    first = torch.randperm(len(data), generator=generator(0, "finetune", 0))[:32]
    loss = nn.functional.cross_entropy(start(data.inputs()[first]), data.labels[first])
    free = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(start.parameters()))])
    assert torch.linalg.norm(expected[0] @ free) > 1e-2 * torch.linalg.norm(free)
    assert torch.allclose(handed[0], free - expected[0].T @ (expected[0] @ free), atol=1e-6)


RESUMED = [
    FinetuneConfig(epochs=4, batch_size=8, learning_rate=1e-2),
    FinetuneConfig(epochs=4, head_epochs=2, batch_size=8, learning_rate=1e-2, loss="class-balanced"),
    FinetuneConfig(epochs=4, batch_size=8, learning_rate=1e-2, project=searched(2, 5, 3)),
]


@pytest.mark.parametrize("config", RESUMED, ids=["plain", "head first", "projected"])
@pytest.mark.parametrize("at", [2, 5, 6, 8, 11])
def test_a_killed_run_resumes_and_ends_the_same(config, at, tmp_path):
    """A kill leaves the folder as it is in epoch 1, 2, at the end of 2, in 3 and 4."""
    module, data = random_problem()
    whole = copy.deepcopy(module)
    resumed = copy.deepcopy(module)
    finetune(whole, data, config)

    def kill(done, total):
        if done == at:
            shutil.copytree(tmp_path / "run", tmp_path / "killed")

    finetune(module, data, config, folder=tmp_path / "run", progress=kill)
    steps = []
    torch.manual_seed(at)
    finetune(
        resumed, data, config, folder=tmp_path / "killed", progress=lambda done, total: steps.append((done, total))
    )
    assert steps == [(i, 12) for i in range(3 * ((at - 1) // 3) + 1, 13)]
    assert same(tensors(whole), tensors(module))
    assert same(tensors(whole), tensors(resumed))
    assert whole.calls == resumed.calls == 12


def test_a_finished_run_returns_at_once_and_another_is_refused(tmp_path, monkeypatch):
    module, data = random_problem()
    config = FinetuneConfig(epochs=2, batch_size=8)
    first, again, other = (copy.deepcopy(module) for _ in range(3))
    finetune(first, data, config, folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["training.safetensors"]
    written = (tmp_path / "training.safetensors").stat().st_mtime_ns
    with monkeypatch.context() as patch:
        patch.setattr(hs.LabelledSet, "resident", lambda *_: pytest.fail("it was finished"))
        finetune(again, data, config, folder=tmp_path)
    assert same(tensors(first), tensors(again))
    inputs, labels = data
    frozen = copy.deepcopy(module)
    frozen.first.weight.requires_grad_(False)
    for net, given, options in [
        (other, data, replace(config, learning_rate=1e-3)),
        (first, data, config),
        (other, (inputs, labels.flip(0)), config),
        (frozen, data, config),
    ]:
        before = tensors(net)
        with pytest.raises(hs.InputError, match=r"folder: .* holds a training with other options"):
            finetune(net, given, options, folder=tmp_path)
        assert same(before, tensors(net))
    assert (tmp_path / "training.safetensors").stat().st_mtime_ns == written
    (tmp_path / "training.safetensors").write_bytes(b"not a file of tensors")
    with pytest.raises(hs.InputError, match=r"training\.safetensors cannot be read"):
        finetune(other, data, config, folder=tmp_path)


def test_a_stopped_run_gives_the_starting_weights_back(trained, data):
    before = tensors(trained)

    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finetune(trained, data, FinetuneConfig(epochs=2), progress=stop)
    assert same(before, tensors(trained))
    assert not trained.training
    assert all(p.grad is None for p in trained.parameters())


def test_a_loss_that_is_not_finite_gives_the_starting_weights_back(trained, data, tmp_path):
    before = tensors(trained)
    inputs = data.inputs().clone()
    inputs[150] = float("nan")
    with pytest.raises(hs.InputError, match="the loss in epoch 1 is nan; give a lower rate, or check the images"):
        finetune(trained, (inputs, data.labels), FinetuneConfig(epochs=2, batch_size=200), folder=tmp_path)
    assert same(before, tensors(trained))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"epochs": 0}, "epochs: got 0; it must be at least 1"),
        ({"batch_size": 1}, "batch_size: got 1; it must be at least 2"),
        ({"batch_size": 201}, r"batch_size: got 201; it must be at most the number of training images \(200\)"),
        ({"learning_rate": 0.0}, "learning_rate: got 0.0; it must be a positive number"),
        ({"learning_rate": float("nan")}, "learning_rate: got nan"),
        ({"epochs": 3, "head_epochs": 4}, r"head_epochs: got 4; it must be between 0 and the number of epochs \(3\)"),
        ({"seed": -1}, "seed: got -1"),
        ({"loss": "hinge"}, "loss: got 'hinge'; it must be one of cross-entropy, focal, class-balanced"),
    ],
)
def test_bad_choices_are_named(choices, message, trained, data):
    with pytest.raises(hs.InputError, match=message):
        finetune(trained, data, FinetuneConfig(**choices))


def test_models_and_data_that_do_not_fit_the_choices(trained, data):
    config = FinetuneConfig(epochs=1, head_epochs=1)
    with pytest.raises(hs.InputError, match="head_epochs: got 1, but no linear layer of the model gives its logits"):
        finetune(nn.Sequential(trained, nn.LogSoftmax(dim=1)), data, config)
    with pytest.raises(hs.InputError, match="half precision"):
        finetune(copy.deepcopy(trained).half(), data, config)
    trained.fc.requires_grad_(False)
    with pytest.raises(hs.InputError, match="the head 'fc' is frozen"):
        finetune(trained, data, config)


def test_warming_up_leaves_no_trace_and_replays_see_each_batch(trained, data, monkeypatch):
    """With a stand-in for the recorder, which also warms up, and replays by running the step."""
    config = FinetuneConfig(epochs=2, head_epochs=1, batch_size=32, learning_rate=1e-3)
    plain = copy.deepcopy(trained)
    replayed = copy.deepcopy(trained)
    finetune(plain, data, config)

    def record(work, device, warm_up):
        for _ in range(warm_up):
            work()
        return SimpleNamespace(replay=work), None

    monkeypatch.setattr(training_step, "can_record", lambda device: True)
    monkeypatch.setattr(training_step, "record", record)
    finetune(replayed, data, config)
    assert same(tensors(plain), tensors(replayed))


def started(module, loss="class-balanced", spikes=2):
    """Start a training on the GPU with random spikes."""
    classifier = hs.Classifier(module.cuda().train())
    space = hs.parameter_space(module)
    counts = torch.arange(1, 11).cuda()
    training = start_training(classifier, space, make_loss(loss, counts), adam(space, 1e-2), spikes)
    drawn = torch.randn(space.dimension, spikes, generator=torch.Generator().manual_seed(0))
    training.spikes.copy_(torch.linalg.qr(drawn).Q.T)
    return training


@needs_gpu
@pytest.mark.parametrize("net", [lambda: resnet18(10), lambda: nn.Sequential(nn.Dropout(0.5), resnet18(10))])
def test_recorded_steps_are_the_plain_ones(net):
    """Five steps, projected and with dropout. Recording moves nothing, although it runs steps."""
    torch.manual_seed(0)
    first = net()
    plain = started(copy.deepcopy(first))
    replayed = started(copy.deepcopy(first))
    batches = [(torch.randn(16, 3, 32, 32).cuda(), torch.randint(10, (16,)).cuda()) for _ in range(5)]
    cuda_graphs._refused.clear()
    with deterministic_kernels():
        replay = recorded_step(replayed, *batches[0])
        assert not cuda_graphs._refused
        assert same(tensors(first.cuda()), tensors(replayed.classifier.module))
        assert not any(moment.any() for moment in replayed.moments.values())
        torch.cuda.manual_seed(1)
        for inputs, labels in batches:
            step(plain, inputs, labels)
        torch.cuda.manual_seed(1)
        for inputs, labels in batches:
            junk = [torch.full((2000, 2000), float("nan"), device="cuda") for _ in range(20)]
            replay(inputs, labels)
            del junk
    start, one, other = (
        torch.cat([p.detach().reshape(-1) for p in module.parameters()])
        for module in (first, plain.classifier.module, replayed.classifier.module)
    )
    assert torch.linalg.norm(one - other) < 1e-3 * torch.linalg.norm(one - start)
    assert replayed.total.item() == pytest.approx(plain.total.item(), rel=1e-3)
    assert {float(s) for name, s in replayed.moments.items() if name.endswith("step")} == {5.0}
    buffers = zip(plain.classifier.module.buffers(), replayed.classifier.module.buffers(), strict=True)
    assert all(torch.allclose(a.float(), b.float(), rtol=1e-3, atol=1e-3) for a, b in buffers)


class Asking(nn.Module):
    """A layer that asks the GPU for a number, which cannot be recorded, and then draws numbers."""

    def forward(self, x):
        return nn.functional.dropout(x * (1 + 0 * x.mean().item()), 0.1, self.training)


@needs_gpu
def test_what_cannot_be_recorded_is_run_as_it_is(data):
    cuda_graphs._refused.clear()
    torch.manual_seed(0)
    net = nn.Sequential(Asking(), SmallNet(10)).cuda()
    before = tensors(net)
    state = torch.cuda.get_rng_state()
    finetune(net, data, FinetuneConfig(epochs=2, head_epochs=1, project=searched(2, 30, 128)))
    assert cuda_graphs._refused
    assert moved(before, net) == set(before)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    torch.rand(3, device="cuda")
    cuda_graphs._refused.clear()


@needs_gpu
def test_every_ready_made_run_on_a_gpu(data):
    """They are recorded, they lower their loss, and the global random state is untouched."""
    cuda_graphs._refused.clear()
    torch.manual_seed(0)
    start = SmallNet(10).eval()
    inputs = data.inputs()
    labels = data.labels
    for config in FINETUNES.values():
        net = copy.deepcopy(start).cuda()
        loss = make_loss(config.loss, data.counts)
        state = torch.cuda.get_rng_state()
        finetune(net, data, replace(config, epochs=6, head_epochs=min(1, config.head_epochs), learning_rate=1e-2))
        assert not cuda_graphs._refused
        assert torch.equal(torch.cuda.get_rng_state(), state)
        with torch.no_grad():
            assert loss(net.cpu()(inputs), labels) < 0.8 * loss(start(inputs), labels)
