import pytest
import torch
from torch import nn

import hessian_surgery as hs
from hessian_surgery import recording as capture
from hessian_surgery.model.resnet import resnet18

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: products are not recorded here")


def test_on_a_cpu_the_function_is_run_as_it_is():
    def double(vector):
        return 2 * vector

    assert capture.recorded(double, torch.zeros(3)) is double


@needs_gpu
def test_a_recorded_product_is_the_plain_one():
    """Also after other work has had the chance to take freed memory, and with two operators in turn."""
    torch.manual_seed(0)
    net = resnet18(10).cuda()
    assert capture.recorded(lambda v: v * v.sum().item(), torch.ones(3, device="cuda"))(torch.ones(3).cuda()).sum() == 9
    capture._refused.clear()
    capture._pool.cache_clear()  # a failed recording leaves its own unusable
    batches = [(torch.randn(16, 3, 32, 32), torch.arange(16) % 10) for _ in range(2)]
    kept = [hs.Hessian(net, batch) for batch in batches]
    assert not capture._refused
    vectors = [torch.randn(kept[0].space.dimension, device="cuda") for _ in range(3)]
    streamed = [hs.Hessian(net, batch, micro_batch=8) for batch in batches]
    for vector in vectors:
        for recorded, plain in zip(kept, streamed, strict=True):
            junk = [torch.full((2000, 2000), float("nan"), device="cuda") for _ in range(20)]
            found, expected = recorded(vector), plain(vector)
            assert hasattr(recorded._resident, "function")
            assert torch.linalg.norm(found - expected) < 1e-4 * torch.linalg.norm(expected)
            del junk


@needs_gpu
def test_moving_the_weights_under_a_recorded_product_is_refused():
    net = resnet18(10).cuda()
    operator = hs.GaussNewton(net, (torch.randn(4, 3, 32, 32), torch.arange(4)))
    vector = torch.ones(operator.space.dimension, device="cuda")
    operator(vector)
    operator.space.perturb(vector, 1e-3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        operator(vector)


@needs_gpu
def test_many_recordings_do_not_pile_up():
    net = resnet18(10).cuda()
    batch = (torch.randn(64, 3, 32, 32), torch.arange(64) % 10)
    sizes = []
    for _ in range(6):
        operator = hs.Hessian(net, batch)
        operator(torch.ones(operator.space.dimension, device="cuda"))
        del operator
        sizes.append(torch.cuda.memory_reserved())
    assert sizes[-1] <= 1.2 * sizes[1]


def test_on_a_cpu_a_batch_is_not_filled_up():
    given = []
    double = capture.batchwise(lambda x: given.append(len(x)) or 2 * x, nn.Identity(), 4)
    for count in (4, 2, 5):
        batch = torch.randn(count, 3)
        assert torch.equal(double(batch), 2 * batch)
    assert given == [4, 2, 5]


class Late(nn.Module):
    """Fills a buffer at its first pass, which is None again after each evaluation."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", None)

    def forward(self, x):
        if self.table is None:
            self.table = torch.arange(3.0, device=x.device)
        return x + self.table


@needs_gpu
def test_a_recording_keeps_what_it_reads():
    """A buffer that is gone after the evaluation that it was recorded in; and batches of other sizes and shapes."""
    module = Late()
    module.weight = nn.Parameter(torch.ones(1, device="cuda"))
    classifier = hs.Classifier(module)
    double = capture.batchwise(module, module, 4)
    for shape in ((4, 3), (2, 3), (5, 3), (2, 1), (3, 3)):
        batch = torch.randn(shape, device="cuda")
        with classifier.evaluating(), torch.no_grad():
            found = double(batch)
        junk = [torch.full((3,), float("nan"), device="cuda") for _ in range(1000)]
        assert torch.equal(found, batch + torch.arange(3.0, device="cuda"))
        del junk
