import pytest
import torch

import hessian_surgery as hs
from conftest import build
from hessian_surgery.studies.walk_direction import WalkDirection, adapt, bulk_alignment, next_direction


def test_adapting_removes_spikes_and_abandoned_directions_together(batch):
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
def test_a_direction_stays_as_long_as_the_spikes_do(kind, batch):
    spectrum = hs.lanczos(hs.Hessian(build("conv"), batch), 2, tolerance=1e-9)
    first = next_direction(kind, None, spectrum, 0.5, seed=3)
    second = next_direction(kind, first, spectrum, 0.5, seed=3)
    assert not first.wall
    assert not second.wall
    assert float(first.direction.norm()) == pytest.approx(1)
    assert torch.allclose(first.direction, second.direction)
    other = next_direction(kind, None, spectrum, 0.5, seed=4)
    assert not torch.allclose(first.direction, other.direction)


def test_a_direction_that_became_a_spike_is_a_wall(batch):
    spectrum = hs.lanczos(hs.Hessian(build("conv"), batch), 2, tolerance=1e-9)
    off_spikes = next_direction("bulk", None, spectrum, 0.5, seed=0).direction
    absorbed = WalkDirection(0.9 * spectrum.vectors[0] + 0.19**0.5 * off_spikes)
    kept = next_direction("bulk", absorbed, spectrum, 0.4, seed=0)
    assert not kept.wall
    fresh = next_direction("bulk", absorbed, spectrum, 0.5, seed=0)
    assert fresh.wall
    assert len(fresh.abandoned) == 1
    assert abs(float(fresh.direction @ absorbed.direction)) < 1e-12
    assert bulk_alignment(absorbed.direction, spectrum) == pytest.approx(0.19**0.5)
