import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from conftest import build
from hessian_surgery.errors import InputError
from hessian_surgery.model.parameters import parameter_space


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.outer = nn.Linear(4, 4)
        self.outer.weight = self.inner.weight


def test_tied_weights_count_once():
    space = parameter_space(Tied())
    assert space.names == ("inner.weight", "inner.bias", "outer.bias")
    assert space.dimension == 16 + 4 + 4


def test_frozen_and_unmatched_parameters_are_left_out():
    model = build("conv")
    model[1].bias.requires_grad_(False)
    assert parameter_space(model).names == ("1.weight", "4.weight", "4.bias")
    assert parameter_space(model, "4.*").names == ("4.weight", "4.bias")


def test_no_parameter_under_the_glob():
    with pytest.raises(InputError, match=r"no trainable parameter matches 'layer9\.\*'; names look like '1.weight'"):
        parameter_space(build("conv"), "layer9.*")
    part = build("conv")
    part[4].requires_grad_(False)
    with pytest.raises(InputError, match=r"'4\.\*'; those that match are frozen \(requires_grad is off\); names look"):
        parameter_space(part, "4.*")
    frozen = build("conv").requires_grad_(False)
    with pytest.raises(InputError, match="the model has none"):
        parameter_space(frozen)


def test_other_weights_are_frozen_in_a_block_only():
    model = build("conv")
    model[1].bias.requires_grad_(False)
    space = parameter_space(model, "4.*")
    before = [p.requires_grad for p in model.parameters()]
    with pytest.raises(ZeroDivisionError), space.freezing_others(model):
        assert [p.requires_grad for p in model.parameters()] == [False, False, True, True]
        raise ZeroDivisionError
    assert [p.requires_grad for p in model.parameters()] == before == [True, False, True, True]


def test_flatten_and_split_are_inverse():
    space = parameter_space(build("batchnorm"))
    vector = torch.randn(space.dimension, dtype=torch.float64)
    assert torch.equal(space.flatten(space.split(vector)), vector)


@given(scale=st.floats(-1e3, 1e3), seed=st.integers(0, 99))
def test_restore_brings_back_every_bit(scale, seed):
    model = nn.Linear(5, 3)
    space = parameter_space(model)
    saved = space.snapshot()
    original = [p.detach().clone() for p in model.parameters()]
    space.perturb(torch.randn(space.dimension, generator=torch.Generator().manual_seed(seed)), scale)
    space.restore(saved)
    assert all(torch.equal(p, o) for p, o in zip(model.parameters(), original, strict=True))


def test_weights_come_back_bit_for_bit_after_a_failure():
    space = parameter_space(build("conv"))
    before = space.snapshot()
    with pytest.raises(ZeroDivisionError), space.keeping_weights() as kept:
        space.perturb(torch.ones(space.dimension), 0.1)
        assert not torch.equal(space.parameters[0], kept[0])
        raise ZeroDivisionError
    assert all(torch.equal(now, then) for now, then in zip(space.parameters, before, strict=True))


def test_perturb_adds_the_scaled_direction():
    model = build("conv")
    space = parameter_space(model, "4.*")
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    direction = torch.randn(space.dimension, dtype=torch.float64)
    space.perturb(direction, 0.5)
    moved = torch.cat([(p.detach() - before[name]).reshape(-1) for name, p in model.named_parameters()])
    assert torch.allclose(moved[-space.dimension :], 0.5 * direction)
    assert not moved[: -space.dimension].any()


def test_round_to_touches_only_what_is_named():
    model = nn.Linear(5, 3)
    bias = model.bias.detach().clone()
    parameter_space(model).round_to({"weight": torch.float16})
    assert torch.equal(model.weight, model.weight.half().float())
    assert torch.equal(model.bias, bias)


def test_round_to_finds_a_tied_weight_under_its_other_name():
    model = Tied()
    parameter_space(model).round_to({"outer.weight": torch.bfloat16})
    assert torch.equal(model.inner.weight, model.inner.weight.bfloat16().float())


def test_half_precision_weights_have_float32_vectors():
    space = parameter_space(nn.Linear(2, 2).bfloat16())
    assert space.dtype == torch.float32
    assert space.split(torch.ones(6))[0].dtype == torch.bfloat16


@pytest.fixture
def one_rank():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_weights_that_are_shared_among_processes_are_refused(one_rank):
    with pytest.raises(InputError, match="wrapped in DistributedDataParallel; give its"):
        parameter_space(nn.parallel.DistributedDataParallel(nn.Linear(2, 2)))
    parted = nn.Linear(2, 2)
    fully_shard(parted, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(InputError, match="'weight' is a DTensor, as of FSDP2"):
        parameter_space(parted)
