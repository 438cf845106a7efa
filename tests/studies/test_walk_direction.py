import pytest
import torch

import hessian_surgery as hs
from conftest import build
from hessian_surgery.studies.heading import Heading, adapt, bulk_alignment, turn


def test_adapting_removes_spikes_and_history_together(batch):
    net = build("conv")
    spectrum = hs.lanczos(hs.Hessian(net, batch), 2, tolerance=1e-9)
    draw = torch.Generator().manual_seed(0)
    past, vector = torch.randn(2, spectrum.space.dimension, generator=draw, dtype=torch.float64)
    past /= past.norm()
    left = adapt("bulk", vector, spectrum, [past])
    assert (spectrum.vectors @ left).abs().max() < 1e-12
    assert abs(float(past @ left)) < 1e-12
    assert bulk_alignment(left / left.norm(), spectrum) == pytest.approx(1)
    inside = adapt("spike", vector, spectrum)
    assert torch.allclose(adapt("bulk", vector, spectrum) + inside, vector)
    assert torch.equal(adapt("random", vector, spectrum), vector)


@pytest.mark.parametrize("kind", ["bulk", "spike", "random"])
def test_a_direction_stays_while_the_spikes_do(kind, batch):
    spectrum = hs.lanczos(hs.Hessian(build("conv"), batch), 2, tolerance=1e-9)
    first = turn(kind, None, spectrum, 0.5, seed=3)
    second = turn(kind, first, spectrum, 0.5, seed=3)
    assert not first.wall
    assert not second.wall
    assert float(first.direction.norm()) == pytest.approx(1)
    assert torch.allclose(first.direction, second.direction)
    assert not torch.allclose(first.direction, turn(kind, None, spectrum, 0.5, seed=4).direction)


def test_a_direction_that_became_a_spike_is_a_wall(batch):
    spectrum = hs.lanczos(hs.Hessian(build("conv"), batch), 2, tolerance=1e-9)
    absorbed = Heading(0.9 * spectrum.vectors[0] + 0.19**0.5 * turn("bulk", None, spectrum, 0.5, seed=0).direction)
    kept = turn("bulk", absorbed, spectrum, 0.4, seed=0)
    assert not kept.wall
    fresh = turn("bulk", absorbed, spectrum, 0.5, seed=0)
    assert fresh.wall
    assert len(fresh.history) == 1
    assert abs(float(fresh.direction @ absorbed.direction)) < 1e-12
    assert bulk_alignment(absorbed.direction, spectrum) == pytest.approx(0.19**0.5)
