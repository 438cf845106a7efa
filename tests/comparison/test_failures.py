"""A method that fails has a row with its reason, and the other methods run."""

import pytest
import torch
from torch import nn

import hessian_surgery as hs


class Saturated(nn.Module):
    """Logits so far apart that the loss has no curvature left."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4, bias=False)
        with torch.no_grad():
            self.fc.weight.copy_(1e4 * torch.eye(4))

    def forward(self, x):
        return self.fc(x)


def task(images=240, noise=0.0, seed=0):
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(images) % 4
    points = nn.functional.one_hot(labels, 4) + noise * torch.randn(images, 4, generator=draw)
    points += 1e-3 * torch.rand(images, 4, generator=draw)
    return hs.as_labelled((points.float(), labels))


def compared(module, methods, training=None, **options):
    protocol = hs.Protocol(methods=methods, splits=2, epochs=1, **options)
    return hs.compare(module, data=task(seed=1), training_data=training or task(), protocol=protocol)


def test_without_spikes_only_their_method_fails():
    found = compared(Saturated(), ("spikes", "vector-scaling"))
    assert "no positive" in found.row("spikes", 0.002).reasons[0]
    assert found.row("vector-scaling", 0.002).splits == 2
    assert found.row("spikes", 0.002).as_dict()["reason"]


@pytest.mark.parametrize("name", ["finetune", "class-balanced+spikes"])
def test_a_training_that_fails_has_a_row(name):
    found = compared(nn.Linear(4, 4), (name, "last-layer"), training=task(40))
    row = next(row for row in found.rows if row.name == name)
    assert "batch_size: got 64" in row.reasons[0]
    assert row.as_dict()["sigma"] is None
    assert found.row("last-layer", 0.002).splits == 2


def test_a_request_for_more_spikes_than_weights_has_a_row():
    found = compared(nn.Linear(4, 4), ("spikes:500", "class-gradients"))
    assert "spikes: got 500" in found.row("spikes:500", 0.002).reasons[0]
    assert found.row("class-gradients", 0.002).splits == 2


class Torn(torch.utils.data.Dataset):
    """The points of `task`, until the disk fails."""

    def __init__(self, reads):
        self.data, self.left = task(), reads
        self.targets = self.data.labels

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        self.left -= 1
        if self.left < 0:
            raise OSError(5, "Input/output error")
        return self.data.inputs()[i], int(self.targets[i])


@pytest.mark.parametrize("methods", [("finetune",), ("class-gradients",), ("class-balanced+spikes",), ("operate",)])
def test_a_disk_that_fails_is_no_methods_fault(methods):
    with pytest.raises(hs.InputError, match=r"a sample cannot be read: .* Input/output error"):
        compared(nn.Linear(4, 4), methods, training=Torn(100))


def test_another_training_in_the_folder_is_no_methods_fault(tmp_path):
    protocol = hs.Protocol(methods=("finetune",), splits=2, epochs=1)
    data = {"data": task(seed=1), "training_data": task(), "folder": tmp_path}
    hs.compare(nn.Linear(4, 4), protocol=protocol, **data)
    with pytest.raises(hs.InputError, match="holds a training with other options"):
        hs.compare(nn.Linear(4, 4), protocol=protocol, **data)
