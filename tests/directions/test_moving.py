"""Which images directions are tried on."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hessian_surgery as hs
from conftest import points
from hessian_surgery.directions import moving
from hessian_surgery.directions.calibration_gradients import calibration_gradients
from hessian_surgery.directions.family import Probe
from hessian_surgery.directions.moving import count_moving, moving_images
from hessian_surgery.directions.random import random_directions
from hessian_surgery.model.evaluation import compute_logits

CPU = torch.device("cpu")


@pytest.fixture
def probe():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double().eval()
    data = points(120, 0)
    data = hs.as_labelled((data.inputs().double(), data.labels), classes=list(data.classes))
    classifier = hs.Classifier(net)
    return Probe(classifier, hs.parameter_space(net), data, compute_logits(classifier, data))


@given(st.integers(1, 100_000))
def test_a_share_of_many_images_move_and_all_of_few(images):
    count = count_moving(images, CPU)
    assert count >= moving.SHARE * images
    assert count == images if images <= moving.FEWEST else count >= moving.FEWEST
    assert count_moving(images, torch.device("cuda")) == images


def test_those_nearest_to_a_change_move(monkeypatch):
    monkeypatch.setattr(moving, "FEWEST", 2)
    logits = torch.tensor([[5.0, 0, 0], [1.0, 0.9, 0], [0, 0, 7.0], [0, 0.3, 0.1], [2, 0, 3.5]])
    assert moving_images(logits).tolist() == [1, 3]
    assert moving_images(logits[:2]) is None


def test_the_changes_of_the_others_are_zero(probe):
    """And those of the moving images are what they are if all move, but for the common scale."""
    every = random_directions(probe, 2)
    some = torch.arange(1, len(probe.data), 2)
    found = random_directions(replace(probe, moving=some), 2)
    assert torch.equal(found.moving, some)
    assert (found.changes[:, ::2] == 0).all()
    ratio = torch.from_numpy(found.scales / every.scales)[:, None, None]
    assert torch.allclose(found.changes[:, 1::2].double(), ratio * every.changes[:, 1::2], rtol=0.02, atol=1e-3)


def test_gradients_of_calibration_images_are_those_of_moving_ones(probe):
    some = torch.arange(0, len(probe.data), 2)
    found = calibration_gradients(replace(probe, moving=some))
    assert (found.changes[:, 1::2] == 0).all()
    assert len(found) == 3
    still = replace(probe, data=hs.as_labelled((_shaken(probe.data, some), probe.data.labels)), moving=some)
    again = calibration_gradients(still)
    assert all(torch.equal(found.vector(i), again.vector(i)) for i in range(3))


def _shaken(data, kept):
    """The inputs, with others where an image is not kept."""
    inputs = data.inputs().clone() + 1.0
    inputs[kept] = data.inputs()[kept]
    return inputs
