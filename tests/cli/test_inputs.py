"""What options and files say of the model."""

import pytest
from safetensors.torch import save_file

import hessian_surgery as hs
from hessian_surgery.cli.inputs import OpenedModel, with_trained_loss
from hessian_surgery.weights.checkpoint import read_checkpoint


@pytest.mark.parametrize(("given", "expected"), [(None, "focal:1.5"), ("cross-entropy", "cross-entropy")])
def test_the_loss_of_a_checkpoint_is_read_from_it(given, expected, trained, tmp_path):
    save_file(trained.state_dict(), tmp_path / "net.safetensors", {"loss": "focal:1.5"})
    opened = OpenedModel(trained, None, read_checkpoint(tmp_path / "net.safetensors"), {})
    config = with_trained_loss(hs.SurgeryConfig(directions="spikes"), given, opened)
    assert config.search.loss == expected
    plain = hs.SurgeryConfig()
    assert with_trained_loss(plain, None, opened) == plain  # no spikes, so the loss plays no part
    save_file(trained.state_dict(), tmp_path / "odd.safetensors", {"loss": "hinge"})
    odd = OpenedModel(trained, None, read_checkpoint(tmp_path / "odd.safetensors"), {})
    assert with_trained_loss(hs.SurgeryConfig(directions="spikes"), None, odd).search.loss == "cross-entropy"
