import pytest
import torch

import hessian_surgery as hs
from hessian_surgery.curvature import capture
from hessian_surgery.models.resnet import resnet18

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
