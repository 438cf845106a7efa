from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import hessian_surgery as hs
from hessian_surgery import cuda_graphs
from hessian_surgery.model.resnet import resnet18

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: nothing is recorded here")


def test_on_a_cpu_the_function_is_run_as_it_is():
    def double(vector):
        return 2 * vector

    assert cuda_graphs.recorded_function(double, torch.zeros(3)) is double


class FakeGenerator:
    """A GPU's generator: a failed recording leaves its state waiting, and a copy does not wait."""

    waiting = True

    def clone_state(self):
        return "copy"

    def graphsafe_set_state(self, state):
        self.waiting = state != "copy"


@pytest.fixture
def fake_gpu(monkeypatch):
    """Stand-ins for the parts of torch.cuda that `record` uses; a recording runs the work once."""
    gpu = SimpleNamespace(current="present", generator=FakeGenerator(), pools=[])

    @contextmanager
    def stream(chosen):
        before = gpu.current
        gpu.current = chosen
        try:
            yield
        finally:
            gpu.current = before

    @contextmanager
    def graph(graph, pool, stream, capture_error_mode):
        gpu.pools.append(pool)
        gpu.current = stream
        yield  # after a failure the stream stays, as PyTorch leaves it
        gpu.current = "present"

    monkeypatch.setattr(cuda_graphs, "_refused", set())
    monkeypatch.setattr(cuda_graphs, "_stream", lambda device: "side")
    monkeypatch.setattr(cuda_graphs, "recordable", lambda device: nullcontext())
    for name, value in {
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: None),
        "current_stream": lambda device: gpu.current,
        "stream": stream,
        "graph": graph,
        "default_generators": [gpu.generator],
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return gpu


GPU = torch.device("cuda", 0)


def test_work_is_warmed_up_and_recorded_once(fake_gpu):
    calls = []

    def work():
        calls.append(fake_gpu.current)
        return len(calls)

    graph, result = cuda_graphs.record(work, GPU, warm_up=3)
    assert len(calls) == result == 4
    assert fake_gpu.current == "present"
    assert fake_gpu.pools == [None]
    assert hasattr(graph, "replay")
    assert cuda_graphs.can_record(GPU)


def test_a_failed_recording_leaves_nothing_stuck_and_is_not_tried_again(fake_gpu):
    """The stream and the generator are as before, and the device is refused from here on."""

    def work():
        if fake_gpu.current != "present":
            raise RuntimeError("operation not permitted when stream is capturing")

    assert cuda_graphs.record(work, GPU) is None
    assert fake_gpu.current == "present"
    assert not fake_gpu.generator.waiting
    assert not cuda_graphs.can_record(GPU)


def test_bugs_and_a_full_memory_are_not_taken_for_a_failed_recording(fake_gpu):
    def full():
        if fake_gpu.current != "present":
            raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        cuda_graphs.record(full, GPU)
    with pytest.raises(RuntimeError, match="size"):
        cuda_graphs.record(lambda: torch.ones(2) @ torch.ones(3), GPU)
    assert cuda_graphs.can_record(GPU)
    assert not cuda_graphs.can_record(torch.device("cpu"))


def test_a_replay_copies_arguments_in_and_results_out(monkeypatch):
    def record(work, device, pool):
        result = work()
        return SimpleNamespace(replay=lambda: result.copy_(work())), result

    monkeypatch.setattr(cuda_graphs, "can_record", lambda device: True)
    monkeypatch.setattr(cuda_graphs, "_pool", lambda device: None)
    monkeypatch.setattr(cuda_graphs, "record", record)
    example = torch.zeros(3)
    double = cuda_graphs.recorded_function(lambda vector: 2 * vector, example)
    first = double(torch.ones(3))
    assert torch.equal(double(torch.full((3,), 2.0)), torch.full((3,), 4.0))
    assert torch.equal(first, torch.full((3,), 2.0))
    assert not example.any()
    with pytest.raises(ValueError, match="shorter"):
        double()


@needs_gpu
def test_what_cannot_be_recorded_is_run_as_it_is():
    """Then the stream is the one before, and random numbers can be drawn."""
    cuda_graphs._refused.clear()
    before = torch.cuda.current_stream()

    def asking(vector):
        return vector * vector.sum().item()

    ones = torch.ones(3, device="cuda")
    assert cuda_graphs.recorded_function(asking, ones) is asking
    assert cuda_graphs._refused == {ones.device}
    assert torch.cuda.current_stream() == before
    assert torch.rand(3, device="cuda").sum() > 0
    cuda_graphs._refused.clear()
    cuda_graphs._pool.cache_clear()  # the pool of a failed recording cannot be used again


@needs_gpu
def test_a_recorded_product_is_the_plain_one():
    """Also after other work could have taken freed memory, and with two operators in turn."""
    torch.manual_seed(0)
    net = resnet18(10).cuda()
    cuda_graphs._refused.clear()
    batches = [(torch.randn(16, 3, 32, 32), torch.arange(16) % 10) for _ in range(2)]
    kept = [hs.Hessian(net, batch) for batch in batches]
    assert not cuda_graphs._refused
    vectors = [torch.randn(kept[0].shape[0], device="cuda") for _ in range(3)]
    streamed = [hs.Hessian(net, batch, micro_batch=8) for batch in batches]
    for vector in vectors:
        for replayed, plain in zip(kept, streamed, strict=True):
            junk = [torch.full((2000, 2000), float("nan"), device="cuda") for _ in range(20)]
            found, expected = replayed @ vector, plain @ vector
            assert hasattr(replayed._resident, "function")
            assert torch.linalg.norm(found - expected) < 1e-4 * torch.linalg.norm(expected)
            del junk


@needs_gpu
def test_moving_the_weights_under_a_recorded_product_is_refused():
    net = resnet18(10).cuda()
    operator = hs.GaussNewton(net, (torch.randn(4, 3, 32, 32), torch.arange(4)))
    vector = torch.ones(operator.shape[0], device="cuda")
    assert (operator @ vector).any()
    operator.space.perturb(vector, 1e-3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        operator @ vector


@needs_gpu
def test_many_recordings_do_not_pile_up():
    net = resnet18(10).cuda()
    batch = (torch.randn(64, 3, 32, 32), torch.arange(64) % 10)
    sizes = []
    for _ in range(6):
        operator = hs.Hessian(net, batch)
        assert (operator @ torch.ones(operator.shape[0], device="cuda")).any()
        del operator
        sizes.append(torch.cuda.memory_reserved())
    assert sizes[-1] <= 1.2 * sizes[1]


def test_on_a_cpu_a_batch_is_not_filled_up():
    given = []

    def plain(x):
        given.append(len(x))
        return 2 * x

    double = cuda_graphs.batchwise(plain, nn.Identity(), 4)
    for count in (4, 2, 5):
        batch = torch.randn(count, 3)
        assert torch.equal(double(batch), 2 * batch)
    assert given == [4, 2, 5]


class Late(nn.Module):
    """A module that fills a buffer at its first pass; it is None again after each evaluation."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", None)

    def forward(self, x):
        if self.table is None:
            self.table = torch.arange(3.0, device=x.device)
        return x + self.table


@needs_gpu
def test_a_recording_keeps_what_it_reads():
    """A buffer that is gone after the evaluation that recorded it; other sizes and shapes, too."""
    module = Late()
    module.weight = nn.Parameter(torch.ones(1, device="cuda"))
    classifier = hs.Classifier(module)
    double = cuda_graphs.batchwise(module, module, 4)
    for shape in ((4, 3), (2, 3), (5, 3), (2, 1), (3, 3)):
        batch = torch.randn(shape, device="cuda")
        with classifier.evaluating(), torch.no_grad():
            found = double(batch)
        junk = [torch.full((3,), float("nan"), device="cuda") for _ in range(1000)]
        assert torch.equal(found, batch + torch.arange(3.0, device="cuda"))
        del junk
