from dataclasses import replace

import pytest
import torch
from torch import nn

import hessian_surgery as hs
from conftest import build
from hessian_surgery.curvature.memory_plan import few_rows
from hessian_surgery.studies.study_inputs import open_calibration_data, open_finder


def finder(model, data, parameters="*", **options):
    search = hs.SpikeSearch(**{"hessian_samples": 32, "spikes": 3} | options)
    return open_finder(model, data, search, parameters, seed=0)


def test_spikes_are_those_of_the_present_weights(trained, digits_parts):
    found = finder(trained, digits_parts.training, parameters="fc.*")
    expected = hs.lanczos(hs.Hessian(trained, found.data, found.space), 3)
    assert len(found.data) == 32
    assert found.space.names == ("fc.weight", "fc.bias")
    assert found.find().eigenvalues == pytest.approx(expected.eigenvalues)


def test_by_default_one_spike_fewer_than_the_classes(trained, digits_parts, batch):
    assert finder(trained, digits_parts.training, spikes=None).count == 9
    assert finder(build("conv"), batch, spikes=None).count == 2


def test_the_basis_is_stored_as_asked(trained, digits_parts):
    options = {"basis": "disk", "precision": "bfloat16", "basis_memory": 0.3e-3}
    found = finder(trained, digits_parts.training, **options)
    assert (found.storage.place, found.storage.precision) == ("disk", "bfloat16")
    assert found.storage.rows == few_rows(3)
    longer = found.with_steps(24).find()
    assert (longer.steps, longer.storage) == (24, replace(found.storage, rows=24))
    with pytest.raises(hs.InputError, match=r"basis_memory: got 0.3 MB, and 3 spikes need 0.5 MB"):
        found.with_steps(40)


def test_there_are_no_more_steps_than_weights(batch):
    found = finder(build("conv"), batch, lanczos_steps=500).find()
    assert found.steps <= found.space.dimension
    assert found.converged.all()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"spikes": 0}, "spikes: got 0; it must be at least 1"),
        ({"lanczos_steps": 0}, "lanczos_steps: got 0"),
        ({"micro_batch": -4}, "micro_batch: got -4"),
        ({"basis_memory": -1.0}, "basis_memory: got -1.0; it must be positive"),
    ],
)
def test_a_bad_search_is_named(option, message):
    with pytest.raises(hs.InputError, match=message):
        hs.SpikeSearch(**option)


def test_half_precision_and_missing_classes_are_refused(trained, digits_parts):
    with pytest.raises(hs.InputError, match=r"model: 'features.0.weight' is held in half precision"):
        finder(trained.half(), digits_parts.training)
    few = hs.as_labelled((torch.zeros(3, 1, 8, 8), torch.arange(3)), classes=[str(i) for i in range(10)])
    with pytest.raises(hs.InputError, match="calibration_data: class '3' has no sample"):
        open_calibration_data(trained, few)


def test_a_loss_without_curvature_has_no_spike():
    inputs = torch.zeros(4, 3)
    labels = torch.arange(4) % 2
    flat = finder(nn.Linear(3, 2, bias=False), (inputs, labels), spikes=1)
    with pytest.raises(hs.InputError, match="training_data: the Hessian has no positive eigenvalue"):
        flat.find()
