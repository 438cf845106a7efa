"""A caller's no_grad, autocast or inference mode does not change what a call does."""

import pytest
import torch
from torch import nn

import hessian_surgery as hs
from conftest import points

MODES = {
    "no_grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}
CALLS = {
    "operate": lambda net, parts: hs.operate(net, **parts).findings.heldout.after.nll,
    "diagnose": lambda net, parts: torch.tensor(
        hs.diagnose(net, training_data=parts["training_data"], calibration_data=parts["calibration_data"], spikes=2)
        .spikes.eigenvalues
    ),
    "spectrum": lambda net, parts: torch.as_tensor(
        hs.spectrum_study(net, parts["training_data"], hs.SpikeSearch(spikes=2)).spectrum.eigenvalues
    ),
}  # fmt: skip


def made():
    parts = {f"{name}_data": points(12, i) for i, name in enumerate(("training", "calibration", "heldout"))}
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)), parts


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CALLS)
def test_a_call_in_a_mode_does_what_it_does_without(name, mode):
    expected = CALLS[name](*made())
    model, parts = made()
    with MODES[mode]():
        found = CALLS[name](model, parts)
    assert torch.equal(expected, found)


def test_weights_that_were_made_in_inference_mode_are_refused():
    with torch.inference_mode():
        model, parts = made()
        with pytest.raises(hs.InputError, match="model: its weights were made in inference mode"):
            hs.operate(model, **parts)
