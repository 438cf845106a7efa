"""Lightning: a module, its checkpoint and its data module go through an operation and back."""

import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hessian_surgery as hs
from extras import extra
from hessian_surgery.data.datamodule import is_datamodule
from hessian_surgery.weights.apply_patch import apply_patch, revert_patch
from hessian_surgery.weights.checkpoint import load_weights, read_checkpoint

lightning = extra("lightning")
# What a user's own file looks like.
OWN = """
import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hessian_surgery as hs


class Net(lightning.LightningModule):
    def __init__(self, width=8):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 10))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)


class Digits(lightning.LightningDataModule):
    def setup(self, stage):
        task = hs.digits()
        self.train, self.test = (TensorDataset(part.inputs(), part.labels) for part in (task.train, task.test))

    def train_dataloader(self):
        return DataLoader(self.train, 64, shuffle=True)

    def test_dataloader(self):
        return DataLoader(self.test, 64)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A user's module with a Lightning model and data, and the checkpoint of a short training."""
    import lightning

    monkeypatch.chdir(tmp_path)
    Path("own_digits.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("own_digits", None)
    import own_digits

    torch.manual_seed(0)
    net = own_digits.Net()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(max_epochs=3, enable_checkpointing=False, **quiet)
        trainer.fit(net, datamodule=own_digits.Digits())
        trainer.save_checkpoint("last.ckpt")
    return own_digits


@pytest.mark.extras
@pytest.mark.skipif(lightning[1].args[0], reason="needs lightning")
def test_a_module_and_its_checkpoint_and_data_go_through_python_and_the_command_line(own, run):
    net = own.Net()
    load_weights(net, read_checkpoint(Path("last.ckpt")))
    parts = hs.datamodule_parts(own.Digits())
    assert len(parts["calibration_data"]) + len(parts["heldout_data"]) == len(hs.digits().test)
    outcome = hs.operate(net, **parts)
    assert outcome.model == "Net"
    given = ("--model", "own_digits:Net", "--checkpoint", "last.ckpt", "--data", "own_digits:Digits", "--out", "run")
    assert run("operate", *given) == 0
    apply_patch(Path("last.ckpt"), Path("run/patch.safetensors"), Path("patched.ckpt"))
    again = own.Net.load_from_checkpoint("patched.ckpt", weights_only=True)
    stored = read_checkpoint(Path("run/model.safetensors")).weights
    assert all(torch.equal(tensor, stored[name]) for name, tensor in again.state_dict().items())
    revert_patch(Path("patched.ckpt"), Path("run/patch.safetensors"), Path("base.ckpt"))
    assert Path("base.ckpt").read_bytes() == Path("last.ckpt").read_bytes()


class Plain:
    """A data module without Lightning; `parts` says which loaders it has."""

    def __init__(self, *loaders):
        self.given = loaders

    def prepare_data(self):
        pass

    def setup(self, stage):
        pass

    def train_dataloader(self):
        return self.given[0]

    def val_dataloader(self):
        return self.given[1]

    def test_dataloader(self):
        return self.given[2]


def loader(count):
    return DataLoader(TensorDataset(torch.randn(count, 2), torch.arange(count) % 2), 4)


def test_each_loader_is_a_part():
    parts = hs.datamodule_parts(Plain(loader(6), loader(8), loader(10)))
    assert [len(part) for part in parts.values()] == [6, 8, 10]
    assert list(parts) == ["training_data", "calibration_data", "heldout_data"]


def test_what_is_no_data_module_is_refused():
    assert not is_datamodule(nn.Linear(2, 2))
    with pytest.raises(hs.InputError, match="module: got a Linear; give a LightningDataModule"):
        hs.datamodule_parts(nn.Linear(2, 2))
    with pytest.raises(hs.InputError, match=r"data: val_dataloader\(\) gives a list; it must give one DataLoader"):
        hs.datamodule_parts(Plain(loader(6), [loader(8), loader(8)], loader(10)))


@pytest.mark.extras
@pytest.mark.skipif(lightning[1].args[0], reason="needs lightning")
def test_a_loader_that_a_lightning_module_lacks_is_told():
    import lightning

    class Nothing(lightning.LightningDataModule):
        def train_dataloader(self):
            return loader(6)

    with pytest.raises(hs.InputError, match="no val_dataloader and no test_dataloader"):
        hs.datamodule_parts(Nothing())
